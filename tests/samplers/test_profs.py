"""PROFS batches: layout, cycles, coverage, and a state from which every batch comes again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nearfar.samplers import Profs
from nearfar.samplers.plateau import Plateau
from nearfar.samplers.profs import draw_distinct

UNEVEN = [1, 2, 3, 4, 5, 6, 7, 30, 4, 4]


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 7 + 2**40, sizes))


LABELS = labels_of(UNEVEN)


def make(labels: np.ndarray = LABELS, **options: Any) -> Profs:
    return Profs(labels, **({"classes": 3, "per_class": 3, "seed": 1} | options))


def embedding(indices: list[int], step: int) -> Tensor:
    """A vector of every sample that drifts with the steps, as those of a network do."""
    fixed = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    drift = torch.randn(200, 4, generator=torch.Generator().manual_seed(step + 1))
    return (fixed + 0.3 * drift)[indices]


def run(sampler: Profs, count: int, *, first: int = 0) -> Iterator[tuple[int, list[int]]]:
    """Yield (cycle, batch) of `count` steps and report each to the sampler; losses fall, then plateau."""
    step = first
    while step < first + count:
        stream = iter(sampler)
        while step < first + count:
            if (wanted := sampler.samples_to_embed()) is not None:
                sampler.write_embeddings(embedding(wanted, step))
            batch = next(stream, None)
            if batch is None:
                break
            sampler.observe(embedding(batch, step), torch.tensor(1 / (1 + step % 11)))
            step += 1
            yield sampler.cycle, batch


@pytest.mark.parametrize("mining", [None, "hncm"])
@pytest.mark.parametrize(("classes", "per_class"), [(3, 3), (4, 2), (1, 2), (10, 5), (25, 4)])
def test_representatives_first_then_their_examples(classes: int, per_class: int, mining: str | None) -> None:
    sampler = make(classes=classes, per_class=per_class, mining=mining)
    n = min(classes, len(UNEVEN))
    assert sampler.representatives == n
    sizes = Counter(LABELS.tolist())
    for _, batch in run(sampler, 60):
        table = np.array(batch).reshape(per_class, n)
        assert len(set(LABELS[table[0]].tolist())) == n
        assert (LABELS[table] == LABELS[table[0]]).all()
        for column in table.T.tolist():
            size = sizes[LABELS[column[0]]]
            assert len(set(column)) == min(per_class, size), "repeats before the class is used up"
            assert size == 1 or column[0] not in column[1:]


@pytest.mark.parametrize("steps", [1, 2, 5, 7])
@pytest.mark.parametrize("mining", [None, "hncm"])
def test_fixed_for_exactly_m_steps_and_different_while_there_are_others(steps: int, mining: str | None) -> None:
    sampler = make(steps=steps, mining=mining)
    of_cycle: dict[int, dict[int, int]] = {}
    for t, (cycle, batch) in enumerate(run(sampler, 40 * steps)):
        assert cycle == t // steps
        for index in batch[: sampler.representatives]:
            assert of_cycle.setdefault(cycle, {}).setdefault(int(LABELS[index]), index) == index
    for label, size in Counter(LABELS.tolist()).items():
        for start in range(0, 40 - size, size):
            seen = [of_cycle[k][label] for k in range(start, start + size) if label in of_cycle[k]]
            assert len(set(seen)) == len(seen)
    changes = sum(
        a != b for k in range(39) for c, a in of_cycle[k].items() if (b := of_cycle[k + 1].get(c)) is not None
    )
    assert changes > 10


def test_a_queue_goes_through_its_class_and_is_shuffled_anew() -> None:
    labels = np.repeat([0, 1, 2], [4, 4, 6])
    sampler = make(labels, classes=3, per_class=2, steps=1)
    first = np.array([sorted(batch[:3]) for _, batch in run(sampler, 24)])
    for column, size in zip(first.T, (4, 4, 6), strict=True):
        passes = column.reshape(-1, size)
        assert (np.sort(passes, 1) == np.sort(passes[0])).all()
        assert len({tuple(p) for p in passes.tolist()}) > 1
    # classes of one size are not shuffled alike
    assert (first[:, 0] != first[:, 1] - 4).any()


@pytest.mark.parametrize("classes", [3, 4, 5, 10])
def test_every_class_comes_once_a_round(classes: int) -> None:
    sampler = make(classes=classes, rho=4)
    rounds = math.ceil(10 / classes)
    batches = [LABELS[batch[:classes]].tolist() for _, batch in run(sampler, 4 * rounds)]
    assert batches[:rounds] != batches[rounds : 2 * rounds]
    for start in range(0, sampler.steps or 0, rounds):
        part = batches[start : start + rounds]
        if start + rounds <= (sampler.steps or 0):
            assert set(Counter(c for batch in part for c in batch)) == set(LABELS.tolist())
            assert len({c for batch in part[:-1] for c in batch}) == classes * (rounds - 1)


def test_every_sample_is_an_example_in_time() -> None:
    seen = Counter(i for _, batch in run(make(), 400) for i in batch[3:])
    assert set(seen) == set(range(len(LABELS)))


def test_an_epoch_is_as_long_as_the_data_and_cycles_go_on_across() -> None:
    sampler = make(steps=4)
    assert len(sampler) == math.ceil(66 / 9) == 8
    assert [len(list(sampler)) for _ in range(3)] == [8, 8, 8]
    assert (sampler.epoch, sampler.position, sampler.cycle) == (3, 0, 5)


def test_size_and_small_data() -> None:
    assert make(classes=None, size=9).representatives == 3
    assert make(classes=None, size=10).size == 9, "whole classes only"
    assert make(classes=3, size=60).size == 9, "classes take precedence over size"
    assert make(np.arange(300) % 60, classes=None).size == 126, "128 is the default"
    few = make(classes=64, per_class=2, rho=6)
    assert (few.representatives, few.size, few.steps) == (10, 20, 6)
    one = make(np.zeros(3, dtype=int), classes=2)
    assert [sorted(set(batch)) for _, batch in run(one, 2)] == [[0, 1, 2]] * 2


OPTIONS: dict[str, dict[str, Any]] = {
    "random classes": {"steps": 5},
    "hncm": {"steps": 5, "mining": "hncm"},
    "hncm, greedy, filled": {"steps": 5, "mining": "hncm", "greedy": True, "fill": True},
    "hncm, two seeds, patience": {"mining": "hncm", "seeds_per_batch": 2, "patience": 3, "normalize": False},
    "patience and steps": {"patience": 3, "steps": 9},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("stop", [1, 4, 5, 8, 19, 23])
def test_resume_in_the_middle_of_a_cycle_and_an_epoch(options: dict[str, Any], stop: int) -> None:
    whole = list(run(make(**options), 50))
    first = make(**options)
    assert list(run(first, stop)) == whole[:stop]
    state = first.state_dict()
    second = make(**(options | {"seed": 9}))
    list(run(second, 3))  # wherever it stood before
    list(run(first, 7, first=stop))  # a state is not tied to the sampler that gave it
    second.load_state_dict(state)
    assert second.cycle == whole[stop - 1][0]
    assert list(run(second, 50 - stop, first=stop)) == whole[stop:]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_state_is_plain(options: dict[str, Any]) -> None:
    def plain(value: Any) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, str) and plain(each) for key, each in value.items())
        if isinstance(value, list):
            return all(plain(each) for each in value)
        return type(value) in (int, float, str, Tensor)

    sampler = make(**options)
    assert plain(sampler.state_dict())
    list(run(sampler, 12))
    assert plain(sampler.state_dict())


def test_what_was_observed_decides_with_hncm_only() -> None:
    def seen(scale: float, **options: Any) -> list[list[int]]:
        sampler, out = make(**options), []
        for k, batch in zip(range(8), sampler, strict=False):
            out.append(batch)
            sampler.observe(embedding(batch, k) + scale * embedding(batch, k + 50), torch.tensor(1.0))
        return out

    assert seen(0.0) == seen(5.0)
    assert seen(0.0, mining="hncm") != seen(5.0, mining="hncm")


def test_a_cycle_ends_when_the_loss_stalls() -> None:
    sampler = make(patience=4)
    assert sampler.steps is None
    losses = [3.0, 2.5, 2.0, 1.5, 1.0] + [5.0] * 4 + [4.0] * 5 + [1.0] * 3
    cycles = []
    stream = (batch for _ in range(9) for batch in sampler)
    for loss in losses:
        cycles.append((next(stream), sampler.cycle)[1])
        sampler.observe(torch.zeros(9, 2), torch.tensor(loss))
    # four steps without a new low end the first; the next one, flat from its first loss on, after four more
    assert cycles == [0] * 9 + [1] * 5 + [2] * 3


def test_steps_limit_patience_and_the_monitor_starts_over() -> None:
    sampler = make(patience=4, steps=3)
    cycles = [cycle for cycle, _ in run(sampler, 12)]
    assert cycles == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert sampler.plateau is not None
    assert sampler.plateau.steps == 0


def test_running_loss_equals_the_sum() -> None:
    losses = np.random.default_rng(0).normal(2, 0.5, 40)
    plateau = Plateau(3, smoothing=0.8, tolerance=0.02)
    lowest, waited = np.inf, 0
    for t in range(40):
        weights = 0.8 ** np.arange(t + 1)
        running = (weights * losses[t::-1]).sum() / weights.sum()
        if t == 0 or running < lowest * (1 - 0.02):
            lowest, waited = running, 0
        else:
            waited += 1
        assert plateau.observe(losses[t]) == (waited >= 3)
        assert plateau.lowest == pytest.approx(lowest, rel=1e-12)


def test_fill_is_wanted_once_a_cycle() -> None:
    sampler = make(mining="hncm", fill=True, steps=2)
    asked = []
    stream = (batch for _ in range(9) for batch in sampler)
    for step in range(6):
        wanted = sampler.samples_to_embed()
        asked.append(wanted is not None)
        if wanted is not None:
            assert sorted(LABELS[wanted].tolist()) == sorted(set(LABELS.tolist()))
            assert sampler.samples_to_embed() == wanted, "asked until it is there"
            sampler.write_embeddings(embedding(wanted, step))
            assert sampler.hncm is not None
            assert sampler.hncm.written.all()
            rows = torch.nn.functional.normalize(embedding(wanted, step))
            torch.testing.assert_close(sampler.hncm.table, rows)
        batch = next(stream)
        if wanted is not None:
            assert set(batch[:3]) <= set(wanted), "the batch has the representatives that were embedded"
        sampler.observe(embedding(batch, step), torch.tensor(1.0))
    assert asked == [True, False] * 3


def test_ranks_share_a_batch_of_known_representatives() -> None:
    whole = list(make(classes=4, per_class=2))
    parts = [list(make(classes=4, per_class=2, rank=r, world=2)) for r in range(2)]
    for k, batch in enumerate(whole):
        assert np.array([part[k] for part in parts]).T.ravel().tolist() == batch


def test_distinct_is_uniform_and_without_repeats() -> None:
    rng = np.random.default_rng(0)
    drawn = draw_distinct(np.full(60000, 4), 3, rng)
    counts = Counter(map(tuple, drawn.tolist()))
    assert len(counts) == 24
    assert max(abs(c - 2500) for c in counts.values()) < 5 * math.sqrt(2500)


def test_many_classes_are_quick() -> None:
    sampler = Profs(np.repeat(np.arange(11318), 5), size=128, per_class=2)
    assert sampler.steps == 1062
    stream = iter(sampler)
    assert len({i for _ in range(177) for i in next(stream)[:64]}) == 11318


def test_bad_input() -> None:
    for options, text in (
        ({"per_class": 1}, "per_class must be at least 2"),
        ({"classes": None, "size": 0}, "size must be at least 1, got 0"),
        ({"classes": 0}, "classes must be at least 1, got 0"),
        ({"rho": 0}, "rho must be a finite number above 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"mining": "hcnm"}, "mining must be one of 'hncm', got 'hcnm'; did you mean 'hncm'"),
        ({"greedy": True}, "need mining='hncm', got mining=None"),
        (
            {"mining": "hncm", "seeds_per_batch": 4},
            r"seeds_per_batch must be from 1 to 3 \(classes per batch\), got 4",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            make(**options)
    with pytest.raises(ValueError, match="labels must have shape \\[N\\], one label per sample"):
        make(np.zeros((2, 2), dtype=int))
    sampler = make(mining="hncm")
    with pytest.raises(ValueError, match="before the sampler yielded a batch"):
        sampler.observe(torch.zeros(9, 2), torch.tensor(0.0))
    next(iter(sampler))
    with pytest.raises(ValueError, match=r"the 9 samples of the global batch.*got shape \[3, 2\]"):
        sampler.observe(torch.zeros(3, 2), torch.tensor(0.0))
    with pytest.raises(ValueError, match=r"one vector per class \(10\)"):
        sampler.write_embeddings(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="mining='hncm'"):
        make().write_embeddings(torch.zeros(10, 2))
    with pytest.raises(ValueError, match="saved with mining, but this sampler was created without it"):
        make().load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match="saved without patience, but this sampler was created with it"):
        make(patience=3).load_state_dict(make().state_dict())
    with pytest.raises(ValueError, match="the state's table has 10 classes, but the labels have 2"):
        make(np.array([0, 1]), classes=2, mining="hncm").load_state_dict(sampler.state_dict())
