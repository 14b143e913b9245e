"""Batch norm whose statistics are those of the global batch, on any device (torch's SyncBatchNorm needs a GPU).

With n rows and places in all, n_r of them on rank r with mean m_r and sum of squares q_r about it:

    mean = sum_r n_r m_r / n,   variance = sum_r (q_r + n_r (m_r - mean)^2) / n

(Chan, Golub and LeVeque 1979: no difference of large numbers). One gather forwards, one sum backwards, of two numbers a
channel each.
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
    """Turn the batch norms inside into synced ones, in place: same parameters, buffers and names."""
    for part in network.modules():
        if isinstance(part, _BatchNorm):
            part.__class__ = SyncedBatchNorm


class SyncedBatchNorm(_BatchNorm):
    """A batch norm that in training counts the rows of all ranks; each must call it as often as the others."""

    def _check_input_dim(self, x: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or process_group.world_size() == 1:
            return super().forward(x)
        mean, variance, count = _statistics(x)
        with torch.no_grad():
            self._move(mean, variance * (count / (count - 1).clamp_min(1)))
        y: Tensor = _Normalize.apply(x, self.weight, self.bias, mean, variance, count, self.eps)  # type: ignore[no-untyped-call]
        return y

    def _move(self, mean: Tensor, variance: Tensor) -> None:
        """The running statistics, as torch moves them."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), factor)
        self.running_var.lerp_(variance.to(self.running_var), factor)


@torch.no_grad()
def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance [C] of the global batch, and how many numbers a channel has."""
    x = x if x.dtype == torch.float64 else x.float()
    n = x.numel() // x.shape[1]
    if n:  # torch's own statistics, in native passes
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
    else:
        mean = variance = x.new_zeros(x.shape[1])
    own = torch.cat([mean, variance * n, mean.new_full((1,), n)])
    each = own.new_empty(process_group.world_size(), len(own))
    dist.all_gather(list(each), own)
    means, squares, counts = each[:, : len(mean)], each[:, len(mean) : -1], each[:, -1:]
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    variance = (squares + counts * (means - mean).square()).sum(0) / count
    return mean, variance, count


class _Normalize(torch.autograd.Function):
    """The statistics are functions of the batch: the gradient through them is in backward, they get none themselves."""

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
        # with y = (x - mean) scale and means over the global batch:
        # dL/dx = weight scale (g - mean(g) - y mean(g y)), of which the first term is there
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
    """Gradients by x, weight and bias of a batch norm whose statistics do not depend on x, in one native pass."""
    ones = torch.ones_like(scale) if weight is None else weight
    by_x, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
        g, x, ones, mean, variance, mean, scale, False, eps, [True, True, True]
    )
    return by_x, by_weight, by_bias


def _per_channel(x: Tensor, slope: Tensor, offset: Tensor) -> Tensor:
    """slope x + offset, each [C], in one native pass."""
    return F.batch_norm(x, torch.zeros_like(slope), torch.ones_like(slope), slope, offset, training=False, eps=0.0)
