"""xi+ and xi- against a loop, in blocks of any size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nearfar.pacing.xi import hardness

LABELS = torch.tensor([5, 0, 5, 2, 2, 0, 5, 9, 2, 5, 0, 2])  # 9 is a class of one


def oracle(x: Tensor, labels: Tensor, alpha: float, beta: float, threshold: float) -> tuple[list[float], list[float]]:
    rows = [row / row.norm() for row in x]
    pos, neg = [], []
    for i, a in enumerate(rows):
        p = n = 0.0
        for j, b in enumerate(rows):
            s = float(a @ b)
            if labels[i] != labels[j]:
                n += math.exp(beta * (s - threshold))
            elif i != j:
                p += math.exp(-alpha * (s - threshold))
        pos.append(math.log1p(p) / alpha)
        neg.append(math.log1p(n) / beta)
    return pos, neg


@pytest.mark.parametrize("memory_mb", [0, 256], ids=["one row a block", "one block"])
@pytest.mark.parametrize(("alpha", "beta", "threshold"), [(2.0, 50.0, 1.0), (3.0, 20.0, 0.5)])
def test_is_the_loop(memory_mb: int, alpha: float, beta: float, threshold: float) -> None:
    x = torch.randn(12, 4, dtype=torch.float64)
    pos, neg = hardness(x, LABELS, alpha=alpha, beta=beta, threshold=threshold, memory_mb=memory_mb)
    for ours, loop in zip((pos, neg), oracle(x, LABELS, alpha, beta, threshold), strict=True):
        torch.testing.assert_close(ours, torch.tensor(loop, dtype=torch.float64), rtol=1e-9, atol=1e-15)
    assert pos[7] == 0


def test_blocks_agree_in_the_middle_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = torch.randn(700, 8), torch.randint(5, (700,))
    whole = hardness(x, labels)
    parts = hardness(x, labels, memory_mb=1)  # 187 rows a block
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b)


def test_order_of_the_rows_does_not_matter() -> None:
    x, order = torch.randn(12, 4, dtype=torch.float64), torch.randperm(12)
    for a, b in zip(hardness(x, LABELS), hardness(x[order], LABELS[order]), strict=True):
        torch.testing.assert_close(a[order], b)


def test_float32_neither_overflows_nor_loses_small_sums() -> None:
    x = torch.randn(12, 4)
    steep = hardness(x, LABELS, beta=2000.0, threshold=-1.0)[1]
    assert steep.isfinite().all()
    torch.testing.assert_close(
        steep.double(), hardness(x.double(), LABELS, beta=2000.0, threshold=-1.0)[1], rtol=1e-4, atol=1e-4
    )
    tiny, exact = hardness(x, LABELS)[1], hardness(x.double(), LABELS)[1]
    assert exact.min() < 1e-9
    torch.testing.assert_close(tiny.double(), exact, rtol=1e-3, atol=1e-30)


def test_half_precision_is_compared_in_float32() -> None:
    x = torch.randn(12, 4).bfloat16()
    assert hardness(x, LABELS)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "labels", "words"),
    [
        (torch.ones(2, 2), torch.tensor([0]), "labels has 1 entries"),
        (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), r"class ids of shape \[N\]"),
        (torch.full((2, 2), torch.nan), torch.tensor([0, 1]), "NaN"),
    ],
)
def test_bad_input(x: Tensor, labels: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        hardness(x, labels)
