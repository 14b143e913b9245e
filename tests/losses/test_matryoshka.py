"""The Matryoshka loss against a loop over the sizes, for every registered loss."""

from __future__ import annotations

import copy

import pytest
import torch

from nearfar.losses import MatryoshkaLoss, ProxyLoss, create, loss_class, names

SIZES = [2, 3, 6]


def batch(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return x, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def options(name: str) -> dict[str, int]:
    return {"classes": 4, "dim": 6} if issubclass(loss_class(name), ProxyLoss) else {}


@pytest.mark.parametrize("name", names())
def test_value_and_gradient_are_the_sum_over_the_sizes(name: str) -> None:
    torch.manual_seed(0)
    loss = create(name, matryoshka=SIZES, **options(name)).double()
    assert isinstance(loss, MatryoshkaLoss)
    parts = copy.deepcopy(loss.losses)  # the state of some losses changes when they are called
    x, y = batch()
    w = torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    first, second = (x.clone().requires_grad_() for _ in range(2))
    torch.manual_seed(1)  # some losses draw random numbers
    value = loss(first, y, weights=w)
    torch.manual_seed(1)
    expected = torch.zeros((), dtype=torch.float64)
    for size, part in zip(SIZES, parts, strict=True):
        expected = expected + part(second[:, :size].clone(), y, weights=w)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    value.backward()
    expected.backward()
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-9, atol=1e-9)
    if isinstance(loss.losses[0], ProxyLoss):
        assert [part.proxies.shape[-1] for part in loss.losses] == SIZES


@pytest.mark.parametrize("name", ["supcon", "multi-similarity", "proxy-anchor", "normalized-softmax"])
def test_gradcheck(name: str) -> None:
    torch.manual_seed(0)
    loss = create(name, matryoshka=SIZES, **options(name)).double()
    x, y = batch()
    assert torch.autograd.gradcheck(lambda z: loss(z, y), x.requires_grad_())


def test_factors_and_references_are_applied() -> None:
    x, y = batch()
    plain = create("contrastive")
    loss = MatryoshkaLoss(lambda _: create("contrastive"), [2, 6], factors=[0.5, 2.0])
    value = loss(x[:4], y[:4], ref_emb=x[4:], ref_labels=y[4:] - 2)
    terms = [plain(x[:4, :m], y[:4], ref_emb=x[4:, :m], ref_labels=y[4:] - 2) for m in (2, 6)]
    torch.testing.assert_close(value, 0.5 * terms[0] + 2 * terms[1])


def test_epochs_reach_every_size_and_the_state_resumes() -> None:
    loss = create("proxy-isa", matryoshka=SIZES, classes=4, dim=6)
    assert loss.warmup_epochs == create("proxy-isa", classes=4, dim=6).warmup_epochs
    loss.start_epoch(3)
    x, y = batch(torch.float32)
    loss(x, y)
    again = create("proxy-isa", matryoshka=SIZES, classes=4, dim=6)
    again.load_state_dict(loss.state_dict())
    again.start_epoch(3)
    loss.eval()
    again.eval()
    assert float(loss(x, y)) == float(again(x, y))
    assert create("proxy-isa", **loss.options).options == loss.options


@pytest.mark.parametrize("sizes", [[], [4, 4], [8, 4], [0, 4], "64", 64])
def test_sizes_must_ascend(sizes: object) -> None:
    with pytest.raises(ValueError, match="matryoshka"):
        create("supcon", matryoshka=sizes)


def test_too_few_dimensions_are_an_error() -> None:
    x, y = batch()
    with pytest.raises(ValueError, match="embeddings must have at least 8 columns"):
        create("supcon", matryoshka=[4, 8])(x, y)
    with pytest.raises(ValueError, match="factors must be 2 numbers above 0"):
        MatryoshkaLoss(lambda _: create("supcon"), [4, 8], factors=[1.0])
