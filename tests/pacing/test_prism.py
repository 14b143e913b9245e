"""PRISM against the released code's loops, written again."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nearfar.pacing.prism import PRISM


class Loops:
    """Sample by sample, centers from a list of remembered rows."""

    def __init__(self, classes: int, noise_rate: float, window: int, size: int) -> None:
        self.classes, self.noise_rate, self.window, self.size = classes, noise_rate, window, size
        self.memory: list[tuple[Tensor, int]] = []
        self.recent: list[float] = []

    def __call__(self, x: Tensor, labels: Tensor) -> list[float]:
        centers = []
        for c in range(self.classes):
            rows = [row for row, y in self.memory if y == c]
            centers.append(torch.stack(rows).mean(0) if rows else None)
        clean = []
        for row, y in zip(x, labels.tolist(), strict=True):
            if centers[y] is None:
                clean.append(1.0)
                continue
            e = [1.0 if v is None else math.exp(float(v @ row)) for v in centers]
            clean.append(e[y] / sum(e))
        removed = sorted(range(len(x)), key=lambda i: clean[i])[: int(self.noise_rate * len(x))]
        if clean[removed[-1]] != 1.0:
            self.recent = [*self.recent, clean[removed[-1]]][-self.window :]
        keep = [i not in removed for i in range(len(x))]
        if self.recent:
            limit = sum(self.recent) / len(self.recent)
            above = [p > limit for p in clean]
            if any(above):
                keep = above
            else:
                self.recent = self.recent[-1:]
        self.memory += [(row, int(y)) for row, y, k in zip(x, labels, keep, strict=True) if k]
        self.memory = self.memory[-self.size :]
        return [float(k) for k in keep]


def batches(number: int, size: int = 24, classes: int = 6) -> list[tuple[Tensor, Tensor]]:
    rows = []
    for _ in range(number):
        truth = torch.randint(classes, (size,))
        x = torch.nn.functional.normalize(torch.eye(classes, 10)[truth] + 0.2 * torch.randn(size, 10))
        wrong = torch.rand(size) < 0.3
        rows.append((x, torch.where(wrong, torch.randint(classes, (size,)), truth)))
    return rows


@pytest.mark.parametrize("size", [30, 500])
def test_is_the_loop(size: int) -> None:
    prism, loops = PRISM(samples=24, classes=6, noise_rate=0.3, window=5, size=size), Loops(6, 0.3, 5, size)
    kept = []
    for x, labels in batches(40):
        ours = prism.batch_weights(x * 3.0, labels, torch.arange(24)).tolist()  # any length of rows
        assert ours == loops(x, labels)
        assert prism.weights.tolist() == ours
        kept.append(sum(ours) / 24)
    assert 0.5 < sum(kept) / 40 < 0.9


def test_removes_the_wrong_ones() -> None:
    prism = PRISM(samples=24, classes=6, noise_rate=0.3)
    right = removed = 0
    for x, labels in batches(60):
        keep = prism.batch_weights(x, labels, torch.arange(24)).bool()
        wrong = x[:, :6].argmax(1) != labels
        right, removed = right + int((wrong & ~keep).sum()), removed + int((~keep).sum())
    assert right / removed > 0.7


def test_batch_threshold_removes_its_share() -> None:
    prism = PRISM(samples=24, classes=6, noise_rate=0.25, threshold="batch")
    for x, labels in batches(5):
        assert prism.batch_weights(x, labels, torch.arange(24)).sum() == 18


def test_warm_up_and_small_batches_keep_all() -> None:
    warm = PRISM(samples=24, classes=6, warm_up=2)
    sums = [float(warm.batch_weights(x, y, torch.arange(24)).sum()) for x, y in batches(4)]
    assert sums[:2] == [24.0, 24.0]
    assert max(sums[2:]) < 24
    x, y = batches(1)[0]
    assert PRISM(samples=24, classes=6, noise_rate=0.5).batch_weights(x[:1], y[:1], torch.tensor([4])).tolist() == [1.0]


def test_dtype_and_untouched_weights() -> None:
    prism = PRISM(samples=100, classes=6)
    x, y = batches(1)[0]
    prism.batch_weights(x.bfloat16(), y, torch.arange(24) + 50)
    assert prism.batch_weights(x.bfloat16(), y, torch.arange(24) + 50).dtype == torch.bfloat16
    assert (prism.weights[:50] == 1).all()
    assert (prism.weights[50:74] == 0).any()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="noise_rate must be at least 0 and below 1, got 1"):
        PRISM(samples=4, classes=2, noise_rate=1)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.1 because classes=2"):
        PRISM(samples=4, classes=2).batch_weights(torch.ones(2, 3), torch.tensor([0, 2]), torch.arange(2))
    state = PRISM(samples=4, classes=2, size=8)
    state.batch_weights(torch.ones(2, 3), torch.tensor([0, 1]), torch.arange(2))
    with pytest.raises(ValueError, match="memory of size 8"):
        PRISM(samples=4, classes=2, size=16).load_state_dict(state.state_dict())
