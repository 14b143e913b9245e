"""Batch norm with the statistics of the global batch: PyTorch's SyncBatchNorm on a GPU, our own code on a CPU.

SyncBatchNorm does not support CPUs. On CPUs, this module combines the statistics of each channel as follows. Rank r has
n_r of the n values. Their mean is m_r, and the sum of their squared deviations from m_r is q_r:

    mean = sum_r n_r m_r / n,   variance = sum_r (q_r + n_r (m_r - mean)^2) / n

These formulas (Chan, Golub and LeVeque 1979) do not subtract large, nearly equal numbers, which would lose precision.
The forward pass needs one gather and the backward pass one all-reduce, each of two numbers per channel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.training.distributed import process_group


def sync_batch_norms(network: nn.Module) -> None:
    """Convert all batch norms of a network to synchronized ones, in place. Parameters, buffers and names are kept."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = SyncedBatchNorm


class SyncedBatchNorm(nn.SyncBatchNorm):
    """A batch norm that uses the samples of all processes in training. All processes must call it equally often."""

    process_group = None  # all processes; an attribute of the class, because `sync_batch_norms` does not call __init__

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cuda":
            return super().forward(x)
        if not self.training or process_group.world_size() == 1:
            return _BatchNorm.forward(self, x)
        mean, variance, count = _statistics(x)
        with torch.no_grad():
            self._update_running_statistics(mean, variance * (count / (count - 1).clamp_min(1)))
        y: Tensor = _Normalize.apply(x, self.weight, self.bias, mean, variance, count, self.eps)  # type: ignore[no-untyped-call]
        return y

    def _update_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), factor)
        self.running_var.lerp_(variance.to(self.running_var), factor)


@torch.no_grad()
def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the mean and the variance of each channel over the global batch, and the number of values per channel."""
    x = x if x.dtype == torch.float64 else x.float()
    n = x.numel() // x.shape[1]
    if n:
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
    else:
        mean = variance = x.new_zeros(x.shape[1])
    local = torch.cat([mean, variance * n, mean.new_full((1,), n)])
    gathered = local.new_empty(process_group.world_size(), len(local))
    # gloo expects an output with one dimension; flatten returns a view, so this call fills `gathered`
    dist.all_gather_into_tensor(gathered.flatten(), local)
    means, squares, counts = gathered[:, : len(mean)], gathered[:, len(mean) : -1], gathered[:, -1:]
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    variance = (squares + counts * (means - mean).square()).sum(0) / count
    return mean, variance, count


class _Normalize(torch.autograd.Function):
    """Normalize a batch. The backward pass includes the gradient through the statistics, which depend on the batch."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        ctx.eps = eps
        ctx.save_for_backward(x, weight, mean, variance, count)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance, count = ctx.saved_tensors
        scale = (variance + ctx.eps).rsqrt()
        by_x, by_weight, by_bias = _constant_statistics_backward(g, x, mean, variance, scale, weight, ctx.eps)
        sums = torch.stack([by_bias, by_weight])
        dist.all_reduce(sums)
        # Let y = (x - mean) scale be the normalized values, and avg() the average over the global batch. Then
        # dL/dx = weight scale (g - avg(g) - y avg(g y)). So far, by_x is only the first term, weight scale g.
        plain, along = sums / count * (scale if weight is None else scale * weight.to(scale))
        slope = along * scale
        by_x.sub_(_per_channel(x, slope, plain - slope * mean))
        return (
            by_x,
            *((None, None) if weight is None else (by_weight.to(weight), by_bias.to(weight))),
            None,
            None,
            None,
            None,
        )


def _constant_statistics_backward(
    g: Tensor, x: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of x, weight and bias in one kernel call, treating mean and variance as constants."""
    ones = torch.ones_like(scale) if weight is None else weight
    by_x, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
        g, x, ones, mean, variance, mean, scale, False, eps, [True, True, True]
    )
    return by_x, by_weight, by_bias


def _per_channel(x: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    """Compute slope * x + offset in one kernel call. Slope and offset have one value per channel."""
    return F.batch_norm(x, torch.zeros_like(slope), torch.ones_like(slope), slope, offset, training=False, eps=0.0)
