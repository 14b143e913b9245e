from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from nearfar.models import create_embedder
from nearfar.models.backbones.conv_norm import ConvNorm, conv_norm


def make(*, bias: bool, training: bool = False) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=bias), nn.BatchNorm2d(5)
    with torch.no_grad():
        for parameter in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert parameter is not None
            parameter.uniform_(0.5, 2)
    return conv.double().train(training), norm.double().train(training)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_value_and_gradients_equal_those_of_two_layers(bias: bool, training: bool) -> None:
    x = torch.randn(4, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    results: list[list[Tensor]] = []
    for compute in (conv_norm, lambda conv, norm, x: norm(conv(x))):
        conv, norm = make(bias=bias, training=training)
        y = compute(conv, norm, x)
        parameters = [x, *conv.parameters(), *norm.parameters()]
        results.append([y, *torch.autograd.grad(y.pow(3).sum(), parameters), *norm.buffers()])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_other_norms_are_called() -> None:
    conv, x = nn.Conv2d(3, 4, 1), torch.randn(2, 3, 5, 5)
    for norm in (nn.Identity(), nn.GroupNorm(2, 4), nn.BatchNorm2d(4, track_running_stats=False).eval()):
        assert torch.equal(conv_norm(conv, norm, x), norm(conv(x)))


def test_a_sequence_computes_every_layer_once() -> None:
    conv, norm = make(bias=False)
    other = copy.deepcopy(norm)
    layers = [nn.BatchNorm2d(3).double().eval(), conv, norm, other, nn.ReLU(), nn.Conv2d(5, 2, 1).double()]
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(ConvNorm(*layers)(x), nn.Sequential(*layers)(x), rtol=1e-12, atol=1e-12)
    assert torch.equal(ConvNorm()(x), x)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "resnet18", "bn-inception", "googlenet-bn"])
def test_backbones_in_eval_mode_call_no_batchnorm_after_a_convolution(name: str) -> None:
    network = create_embedder(name, dim=8, input_size=64).eval()
    called = []
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.register_forward_hook(lambda *_: called.append(1))
    network(torch.randn(1, 3, 64, 64))
    assert len(called) <= 1 < len(norms)  # the stem of ResNet is a list of layers
    called.clear()
    network.train()(torch.randn(2, 3, 64, 64))
    assert len(called) == len(norms)


def test_frozen_statistics_train_like_batch_norm() -> None:
    """Gradients of all parameters equal those of a network that calls its batch norms."""
    torch.manual_seed(0)
    network = create_embedder("efficientnet-lite0", dim=8, input_size=32).double()
    network.freeze_batchnorm()
    network.train()
    x, gradients = torch.randn(2, 3, 32, 32, dtype=torch.float64), []
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
    for forward in (ConvNorm.forward, nn.Sequential.forward):
        original = ConvNorm.forward
        ConvNorm.forward = forward  # type: ignore[method-assign]
        try:
            network.zero_grad()
            network(x).square().sum().backward()
        finally:
            ConvNorm.forward = original  # type: ignore[method-assign]
        gradients.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8 * float(theirs.abs().max()))
