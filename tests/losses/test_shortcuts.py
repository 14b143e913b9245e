"""Code that saves operations in a special case does not change values or gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import nearfar.losses as losses
from nearfar.losses.nca import nca
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks


def batch(n: int = 12, d: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.to(dtype).requires_grad_(), torch.arange(n) % 4


def value_and_gradient(loss: torch.nn.Module, x: Tensor, y: Tensor, **options: Tensor) -> tuple[Tensor, Tensor]:
    value = loss(x, y, **options)
    return value.detach(), torch.autograd.grad(value, x)[0]


@pytest.mark.parametrize("weighted", [False, True])
def test_multi_similarity_is_zero_if_mining_keeps_no_pair(weighted: bool) -> None:
    x = torch.eye(3, dtype=torch.float64).repeat(2, 1).requires_grad_()  # positives are equal, negatives orthogonal
    weights = {"weights": torch.rand(6, dtype=torch.float64)} if weighted else {}
    value, gradient = value_and_gradient(losses.create("multi-similarity"), x, torch.arange(3).repeat(2), **weights)
    assert value == 0
    assert gradient.shape == x.shape
    assert not gradient.any()


@pytest.mark.parametrize("scale", [1.0, 14.0])
def test_nca_with_shared_exponentials_is_nca(scale: float) -> None:
    x, y = batch()
    pairs = Pairs(cosine_matrix(x), *pair_masks(y), symmetric=True)
    apart = nca(pairs, scale)
    shared = nca(pairs, scale, spread=2 * scale)
    torch.testing.assert_close(shared, apart, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in (apart, shared)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-10, atol=1e-12)


def test_nca_does_not_underflow_in_float32_if_positives_are_opposite() -> None:
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 1e-3]])
    y = torch.tensor([0, 0, 1])
    for scale in (14.9, 15.1, 200.0):  # the exponentials are shared below 15
        loss = losses.create("nca", scale=scale)
        torch.testing.assert_close(loss(x, y).double(), loss(x.double(), y), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [("contrastive", {"form": form}) for form in ("squared", "distance", "cosine")]
    + [("intra-pair-variance", {"eps_pos": 0.1})],
)
@pytest.mark.parametrize("classes", [4, 1, 12])
def test_unit_weights_change_nothing(name: str, options: dict[str, Any], classes: int) -> None:
    x, _ = batch()
    y = torch.arange(12) % classes
    loss = losses.create(name, **options)
    plain = value_and_gradient(loss, x, y)
    weighted = value_and_gradient(loss, x, y, weights=torch.ones(12, dtype=torch.float64))
    torch.testing.assert_close(plain, weighted, rtol=1e-12, atol=1e-12)


def test_p2sgrad_with_unit_weights_is_p2sgrad() -> None:
    x, y = batch()
    loss = losses.create("p2sgrad", classes=4, dim=5).double()
    results = []
    for options in ({}, {"weights": torch.ones(12, dtype=torch.float64)}):
        value = loss(x, y, **options)
        results.append((value.detach(), *torch.autograd.grad(3 * value, [x, loss.proxies])))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss.per_sample(x, y).mean(), loss(x, y), rtol=1e-12, atol=0)


def test_n_pair_ignores_the_order_of_classes_and_samples_without_weight() -> None:
    x, _ = batch(7)
    loss = losses.create("n-pair")
    sorted_value, sorted_gradient = value_and_gradient(loss, x[:6], torch.tensor([0, 0, 1, 1, 2, 2]))
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    value, gradient = value_and_gradient(loss, x[order], torch.tensor([2, 0, 2, 1, 0, 1]) * 10 - 7)
    torch.testing.assert_close(value, sorted_value, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, sorted_gradient[order], rtol=1e-10, atol=1e-12)

    weights = torch.tensor([1, 1, 1, 1, 1, 1, 0], dtype=torch.float64)
    value, _ = value_and_gradient(loss, x, torch.tensor([0, 0, 1, 1, 2, 2, 1]), weights=weights)
    torch.testing.assert_close(value, sorted_value, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="3 samples of class 1"):
        loss(x, torch.tensor([0, 0, 1, 1, 2, 2, 1]))


def test_large_margin_softmax_with_logits_far_apart_is_the_same_in_float32() -> None:
    torch.manual_seed(0)
    loss = losses.create("large-margin-softmax", classes=50, dim=64)
    exact = losses.create("large-margin-softmax", classes=50, dim=64).double()
    exact.load_state_dict(loss.state_dict())
    x = 10 * torch.randn(16, 64)  # logits of about +-80 per standard deviation
    y = torch.arange(16)
    results = []
    for each, rows in ((loss, x.clone().requires_grad_()), (exact, x.double().requires_grad_())):
        value = each(rows, y)
        results.append([t.double() for t in (value.detach(), *torch.autograd.grad(value, [rows, each.proxies]))])
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
