"""Depthwise convolution with a fast gradient for feature maps that are smaller than the kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Depthwise(nn.Conv2d):
    """Depthwise convolution: one filter of odd size for each channel.

    The results are those of nn.Conv2d. On a CPU without autocast, if the map is smaller than the kernel and the
    convolution keeps its size (stride 1, padding kernel // 2), the weight gradient is computed as a sum of shifted
    products. For a 5x5 kernel on a 4x4 map, PyTorch's weight gradient takes nine times as long. It would take a fifth
    of a training step of EfficientNet-Lite0 at 112 pixels.
    """

    def __init__(self, channels: int, kernel: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__(channels, channels, kernel, stride, padding, groups=channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        kernel, side = self.kernel_size[0], max(x.shape[-2:])
        shifted = side < kernel and self.stride == (1, 1) and self.padding == (kernel // 2,) * 2
        if shifted and x.device.type == "cpu" and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"):
            y: Tensor = _OnSmallMap.apply(x, self.weight)  # type: ignore[no-untyped-call]
            return y
        return super().forward(x)


class _OnSmallMap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return nn.functional.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=len(weight))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        half = weight.shape[-1] // 2
        x_grad, _, _ = torch.ops.aten.convolution_backward(
            *(grad, x, weight, None, [1, 1], [half, half], [1, 1], False, [0, 0], len(weight)),
            [ctx.needs_input_grad[0], False, False],
        )
        return x_grad, _weight_grad(grad, x, half) if ctx.needs_input_grad[1] else None


def _weight_grad(grad: Tensor, x: Tensor, half: int) -> Tensor:
    """Compute the gradient of each kernel weight: the sum of `grad` times `x` shifted by the weight's offset."""
    grad, x = grad.permute(0, 2, 3, 1), x.permute(0, 2, 3, 1)  # channels last, the memory format of both tensors
    height, width = x.shape[1:3]
    result = x.new_zeros(x.shape[-1], 1, 2 * half + 1, 2 * half + 1)
    for down in range(-min(half, height - 1), min(half, height - 1) + 1):
        for right in range(-min(half, width - 1), min(half, width - 1) + 1):
            at = grad[:, max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)]
            of = x[:, max(0, down) : height - max(0, -down), max(0, right) : width - max(0, -right)]
            result[:, 0, half + down, half + right] = (at * of).sum((0, 1, 2))
    return result
