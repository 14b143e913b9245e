"""Losses of two encoders against loops, their gradients, and their learned scale and bias."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nearfar.losses.image_text import InfoNCELoss, SigmoidLoss


def make(count: int = 5, others: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 4, generator=generator, dtype=torch.float64) for n in (count, others))
    return x, torch.tensor([0, 1, 2, 2, 9])[:count], y, torch.tensor([2, 1, 0, 0, 3, 2])[:others]


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


def info_nce_loop(x: Tensor, labels: Tensor, y: Tensor, ref: Tensor, scale: float) -> float:
    def side(a: Tensor, la: Tensor, b: Tensor, lb: Tensor) -> float:
        terms = []
        for i in range(len(a)):
            logits = [scale * cosine(a[i], b[j]) for j in range(len(b))]
            total = math.log(sum(math.exp(value) for value in logits))
            own = [total - logits[j] for j in range(len(b)) if la[i] == lb[j]]
            if own:
                terms.append(sum(own) / len(own))
        return sum(terms) / len(terms)

    return (side(x, labels, y, ref) + side(y, ref, x, labels)) / 2


def sigmoid_loop(x: Tensor, labels: Tensor, y: Tensor, ref: Tensor, scale: float, bias: float) -> float:
    total = 0.0
    for i in range(len(x)):
        for j in range(len(y)):
            z = 1 if labels[i] == ref[j] else -1
            total -= math.log(1 / (1 + math.exp(-z * (scale * cosine(x[i], y[j]) + bias))))
    return total / len(x)


def test_values_agree_with_loops() -> None:
    x, labels, y, ref = make()
    nce, sigmoid = InfoNCELoss(scale=7.0).double(), SigmoidLoss(scale=3.0, bias=-2.0).double()
    # the parameters are created in float32
    scale, other = float(nce.log_scale.detach().exp()), float(sigmoid.log_scale.detach().exp())
    found = nce(x, labels, ref_emb=y, ref_labels=ref)
    assert float(found) == pytest.approx(info_nce_loop(x, labels, y, ref, scale), abs=1e-9)
    found = sigmoid(x, labels, ref_emb=y, ref_labels=ref)
    assert float(found) == pytest.approx(sigmoid_loop(x, labels, y, ref, other, -2.0), abs=1e-9)


@pytest.mark.parametrize("loss", [InfoNCELoss(scale=5.0), SigmoidLoss(scale=2.0, bias=-1.0)])
def test_gradients(loss: InfoNCELoss | SigmoidLoss) -> None:
    x, labels, y, ref = make()
    loss = loss.double()
    assert torch.autograd.gradcheck(
        lambda a, b: loss(a, labels, ref_emb=b, ref_labels=ref), (x.requires_grad_(), y.requires_grad_())
    )
    loss(x, labels, ref_emb=y, ref_labels=ref).backward()
    assert all(p.grad is not None and float(p.grad.abs()) > 0 for p in loss.parameters())


@pytest.mark.parametrize("loss", [InfoNCELoss(), SigmoidLoss()])
def test_edge_cases(loss: InfoNCELoss | SigmoidLoss) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    for labels, others in (([0, 1, 2], [3, 4, 5]), ([0, 0, 0], [0, 0, 0])):
        value = loss(x, torch.tensor(labels), ref_emb=x.detach(), ref_labels=torch.tensor(others))
        assert bool(torch.isfinite(value))
        value.backward()
    with pytest.raises(ValueError, match="labels must have one entry per embedding"):
        loss(x, torch.arange(2), ref_emb=x, ref_labels=torch.arange(3))


def test_the_scale_stays_below_100() -> None:
    loss = InfoNCELoss(scale=1e6)
    assert float(loss.logits(torch.eye(2), torch.eye(2)).max()) == pytest.approx(100, rel=1e-5)
