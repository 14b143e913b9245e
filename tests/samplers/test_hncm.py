"""HNCM against a loop over classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nearfar.samplers import HNCM


def table(seed: int, rows: int = 12) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed))


def slow(rows: Tensor, written: list[int], seeds: list[int], count: int, *, greedy: bool) -> list[int]:
    """What is chosen before anything is drawn at random."""

    def gap(a: int, b: int) -> float:
        return (rows[a] - rows[b]).norm().item()

    chosen = list(seeds) if greedy else []
    for k, seed in enumerate(seeds):
        if greedy or seed not in written:
            chosen += [] if greedy else [seed]
            continue
        share = count // len(seeds) + (1 if k < count % len(seeds) else 0)
        others = [c for c in written if c not in chosen and c not in seeds]
        chosen += [seed, *sorted(others, key=lambda c: gap(seed, c))[: share - 1]]
    while greedy and len(chosen) < count:
        gaps = {c: min(gap(c, b) for b in chosen if b in written) for c in written if c not in chosen}
        if not gaps:
            break
        chosen.append(min(gaps, key=lambda c: gaps[c]))
    return chosen


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("seeds", [[4], [4, 0], [7, 2, 9]])
@pytest.mark.parametrize("written", [list(range(12)), [4, 0, 7, 2, 9, 5, 1], [4, 0, 7, 2, 9]])
def test_equals_the_loop(written: list[int], seeds: list[int], greedy: bool, normalize: bool) -> None:
    for trial in range(5):
        hncm, rows = HNCM(12, greedy=greedy, normalize=normalize), table(trial)
        hncm.write(np.array(written), rows[written])
        unit = torch.nn.functional.normalize(rows) if normalize else rows
        wanted = slow(unit, written, seeds, 7, greedy=greedy)
        chosen = hncm.choose(seeds, 7, np.random.default_rng(trial)).tolist()
        assert chosen[: len(wanted)] == wanted
        assert len(set(chosen)) == len(chosen) == 7


@pytest.mark.parametrize("greedy", [False, True])
def test_a_seed_without_a_row_gets_random_company(greedy: bool) -> None:
    hncm = HNCM(12, greedy=greedy)
    company: set[int] = set()
    for trial in range(60):
        if trial == 30:
            hncm.write(np.arange(6), table(0)[:6])
        chosen = hncm.choose([8], 4, np.random.default_rng(trial)).tolist()
        assert chosen[0] == 8
        assert len(set(chosen)) == 4
        company |= set(chosen)
    assert company == set(range(12))


def test_rows_are_overwritten_and_the_others_stay() -> None:
    hncm = HNCM(4, normalize=False)
    hncm.write(np.arange(4), torch.tensor([[0.0], [1.0], [2.0], [9.0]]))
    assert hncm.choose([0], 2, np.random.default_rng(0)).tolist() == [0, 1]
    hncm.write(np.array([1, 3]), torch.tensor([[8.0], [0.5]], dtype=torch.bfloat16))
    assert hncm.table.flatten().tolist() == [0.0, 8.0, 2.0, 0.5]
    assert hncm.choose([0], 3, np.random.default_rng(0)).tolist() == [0, 3, 2]


def test_ties_go_to_the_first_class() -> None:
    hncm = HNCM(6)
    hncm.write(np.arange(6), torch.ones(6, 2))
    assert hncm.choose([3], 4, np.random.default_rng(0)).tolist() == [3, 0, 1, 2]


def test_bad_rows() -> None:
    hncm = HNCM(4)
    with pytest.raises(ValueError, match="embeddings has NaN"):
        hncm.write(np.array([0]), torch.tensor([[float("nan"), 0.0]]))
    hncm.write(np.array([0]), torch.ones(1, 2))
    with pytest.raises(ValueError, match="embeddings must have 2 columns"):
        hncm.write(np.array([0]), torch.ones(1, 3))
