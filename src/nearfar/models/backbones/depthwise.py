"""Depthwise convolution with a fast weight gradient for kernels larger than 3x3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

TILE = 3  # oneDNN has fast weight gradients of depthwise convolutions up to this size of the kernel


class Depthwise(nn.Conv2d):
    """Depthwise convolution: one filter of odd size for each channel.

    The results are those of nn.Conv2d. On a CPU without autocast and with stride 1, the weight gradient of a kernel
    larger than 3x3 is put together from gradients of overlapping 3x3 parts, which oneDNN computes much faster. For a
    5x5 kernel, it takes three quarters of PyTorch's time on a 14x14 map, and half of it on a 7x7 map.
    """

    def __init__(self, channels: int, kernel: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels, channels, kernel, stride, padding, groups=channels, bias=False)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor
        is_slow = self.kernel_size[0] > TILE and self.stride == (1, 1)  # in PyTorch
        if is_slow and input.device.type == "cpu" and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            y = _LargeKernel.apply(input, weight, bias, self.padding[0])  # type: ignore[no-untyped-call]
            return y
        y = super()._conv_forward(input, weight, bias)
        return y


class _LargeKernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return nn.functional.conv2d(x, weight, bias, padding=padding, groups=len(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        x_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            x_grad, _ = _gradients(grad, x, weight, ctx.padding, (True, False))
        if ctx.needs_input_grad[1]:
            weight_grad = _weight_grad(grad, x, weight, ctx.padding)
        if ctx.needs_input_grad[2]:
            bias_grad = grad.sum((0, 2, 3))
        return x_grad, weight_grad, bias_grad, None


def _gradients(
    grad: Tensor, x: Tensor, weight: Tensor, padding: int, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a depthwise convolution with respect to input and weight, or None if not `wanted`."""
    x_grad, weight_grad, _ = torch.ops.aten.convolution_backward(
        *(grad, x, weight, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], len(weight)), [*wanted, False]
    )
    return x_grad, weight_grad


def _weight_grad(grad: Tensor, x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Compute the weight gradient from those of 3x3 parts of the kernel, which share their outer rows and columns."""

    def pad(start: int, axis: int) -> tuple[int, int]:
        """Return the padding before and after the part of the input that the tile sees. Negative padding crops."""
        length = grad.shape[axis] + TILE - 1
        return padding - start, start - padding + length - x.shape[axis]

    result = torch.empty_like(weight)
    starts = range(0, weight.shape[-1] - TILE + 1, TILE - 1)
    for top in starts:
        for left in starts:
            tile = (..., slice(top, top + TILE), slice(left, left + TILE))
            seen = nn.functional.pad(x, (*pad(left, -1), *pad(top, -2)))
            result[tile] = _gradients(grad, seen, weight[tile], 0, (False, True))[1]
    return result
