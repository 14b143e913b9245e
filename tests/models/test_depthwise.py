from __future__ import annotations

import pytest
import torch
from torch import nn

from nearfar.models.backbones.depthwise import Depthwise


def grads(conv: nn.Conv2d, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = conv(x)
    return y, *torch.autograd.grad(y.square().sum(), (x, conv.weight))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("kernel", "padding", "height", "width"),
    [(5, 2, 14, 14), (5, 2, 7, 9), (5, 2, 4, 3), (5, 2, 1, 2), (5, 0, 6, 5), (5, 1, 8, 7), (7, 3, 4, 6), (9, 4, 11, 5)],
)
def test_value_and_gradients_equal_those_of_torch(
    kernel: int, padding: int, height: int, width: int, layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    conv = Depthwise(6, kernel, padding=padding).double()
    x = torch.randn(3, 6, height, width, dtype=torch.float64).to(memory_format=layout)
    own = grads(conv, x)
    assert "LargeKernel" in type(own[0].grad_fn).__name__
    plain = nn.Conv2d(6, 6, kernel, padding=padding, groups=6, bias=False).double()
    plain.weight = conv.weight
    for ours, theirs in zip(own, grads(plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


def test_gradcheck() -> None:
    torch.manual_seed(0)
    conv = Depthwise(2, 5, padding=2).double()
    x = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(conv, {"weight": w}, (x,)), (x, conv.weight)
    )


def test_a_frozen_filter_still_passes_the_gradient() -> None:
    conv = Depthwise(2, 5, padding=2).requires_grad_(False)
    x = torch.randn(2, 2, 4, 4, requires_grad=True)
    conv(x).sum().backward()
    assert x.grad is not None
    assert conv.weight.grad is None


def test_an_input_without_gradient_gets_none() -> None:
    conv, x = Depthwise(2, 5, padding=2), torch.randn(1, 2, 6, 6)
    conv(x).sum().backward()
    assert conv.weight.grad is not None
    assert x.grad is None


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 2)])
def test_other_cases_use_the_operation_of_torch(kernel: int, stride: int) -> None:
    y = Depthwise(2, kernel, stride=stride)(torch.randn(1, 2, 8, 8))
    assert "LargeKernel" not in type(y.grad_fn).__name__


def test_autocast_and_inference_use_the_operation_of_torch() -> None:
    conv, x = Depthwise(2, 5, padding=2), torch.randn(1, 2, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert conv(x).dtype == torch.bfloat16
    with torch.no_grad():
        assert conv(x).grad_fn is None
