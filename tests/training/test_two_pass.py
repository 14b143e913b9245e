from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nearfar.losses import PairLoss, create, loss_class, names
from nearfar.training.two_pass import two_pass, without_statistics_update

EVERY = [name for name in names() if name != "dro"]


def network(*, norm: bool = True, drop: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Linear(6, 10), nn.BatchNorm1d(10) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(drop)]
    net = nn.Sequential(*parts, nn.Linear(10, 5)).double().train()
    if norm:
        net[1].running_mean.normal_()
        net[1].eval()
    return net


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    if issubclass(loss_class(name), PairLoss):
        return create(name).double()
    return create(name, classes=8, dim=5).double()


def gradients(net: nn.Module, loss: nn.Module) -> list[Tensor]:
    found = [p.grad for p in [*net.parameters(), *loss.parameters()] if p.grad is not None]
    assert found
    assert any(float(each.abs().max()) > 0 for each in found)
    return found


@pytest.mark.parametrize("name", [*EVERY, "dro"])
@pytest.mark.parametrize("micro_batch", [1, 7, 16])
def test_equals_the_plain_gradient(name: str, micro_batch: int) -> None:
    """Whole pairs, whatever the parts; batch norm frozen. Both sides draw the same random numbers (mining)."""
    x = torch.randn(16, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(16) % 8

    def options() -> nn.Module:
        return (
            create("dro", pair="binomial", uncertainty={"name": "topk", "k": 20}).double()
            if name == "dro"
            else made(name)
        )

    plain_net, plain_loss = network(), options()
    torch.manual_seed(5)
    rows = plain_net(x)
    value = plain_loss(rows, labels)
    value.backward()
    net, loss = network(), options()
    torch.manual_seed(5)
    again, embedded = two_pass(net, lambda rows: loss(rows, labels), x, micro_batch=micro_batch)
    torch.testing.assert_close(embedded, rows.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(again, value.detach(), rtol=1e-12, atol=1e-12)
    for ours, plain in zip(gradients(net, loss), gradients(plain_net, plain_loss), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


def test_separate_losses_of_the_parts_differ() -> None:
    """The test above can fail: the sum of the parts' losses has another gradient."""
    x, labels = torch.randn(16, 6, dtype=torch.float64), torch.arange(16) % 4
    plain, parts = network(), network()
    create("supcon")(plain(x), labels).backward()
    for some, some_labels in zip(x.split(8), labels.split(8), strict=True):
        (create("supcon")(parts(some), some_labels) / 2).backward()
    assert not torch.allclose(plain[0].weight.grad, parts[0].weight.grad, rtol=1e-3)


def test_dropout_and_the_generator_match_a_plain_step() -> None:
    x, labels = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % 3
    net = network(drop=0.5)
    torch.manual_seed(2)
    _, rows = two_pass(net, lambda rows: create("supcon")(rows, labels), x, micro_batch=12)
    after = torch.rand(1)
    expected = [p.grad.clone() for p in net.parameters()]
    other = network(drop=0.5)
    torch.manual_seed(2)
    plain = other(x)
    create("supcon")(plain, labels).backward()
    assert torch.equal(torch.rand(1), after)
    torch.testing.assert_close(rows, plain.detach())
    for ours, theirs in zip(expected, other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad, rtol=1e-10, atol=1e-10)


def test_running_statistics_are_updated_once() -> None:
    net = network()
    norm = net[1].train()
    x, labels = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % 3
    before = norm.running_mean.clone()
    with torch.no_grad(), without_statistics_update(net):
        net(x)
    assert torch.equal(norm.running_mean, before)
    assert int(norm.num_batches_tracked) == 0
    assert norm.momentum == 0.1
    two_pass(net, lambda rows: create("supcon")(rows, labels), x, micro_batch=12)
    assert int(norm.num_batches_tracked) == 1
    assert not torch.equal(norm.running_mean, before)
