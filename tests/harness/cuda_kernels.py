"""CPU kernels for five operators of PyTorch's SyncBatchNorm, which PyTorch implements only for CUDA.

The pretend device needs them because it computes on the CPU. The formula for channel c is:

    y = (x - mean_c) invstd_c weight_c + bias_c,   invstd_c = 1 / sqrt(variance_c + eps)
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
Pair = tuple[Tensor, Tensor]


def wide(x: Tensor) -> Tensor:
    """Convert a tensor to float32, unless it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def sums(x: Tensor) -> Tensor:
    """Return the sum of each channel."""
    return x.sum([i for i in range(x.ndim) if i != 1])


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.ndim - 2))


def stats(x: Tensor, eps: float) -> Pair:
    x, n = wide(x), x.numel() // x.shape[1]
    mean = sums(x) / n
    return mean, (sums((x - per_channel(mean, x)).square()) / n + eps).rsqrt()


def gather_stats(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> Pair:
    counts = counts[:, None]
    n = counts.sum()
    mean = (counts * means).sum(0) / n
    variance = (counts * (invstds**-2 - eps + (means - mean).square())).sum(0) / n
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean.to(running_mean), momentum)
        running_var.lerp_((variance * n / (n - 1)).to(running_var), momentum)
    return mean, (variance + eps).rsqrt()


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    y = (wide(x) - per_channel(mean, x)) * per_channel(invstd, x)
    if weight is not None:
        y = y * per_channel(weight, x)
    return (y if bias is None else y + per_channel(bias, x)).to(x.dtype)


def backward_sums(
    g: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *_: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g, along = wide(g), sums(wide(g) * (wide(x) - per_channel(mean, x)))
    plain = sums(g)
    to = plain.dtype if weight is None else weight.dtype
    return plain, along, (along * invstd).to(to), plain.to(to)


def backward(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    plain: Tensor,
    along: Tensor,
    counts: Tensor,
) -> Tensor:
    n = counts.sum()
    slope = per_channel(along * invstd.square() / n, x)
    by_y = wide(g) - per_channel(plain / n, x) - slope * (wide(x) - per_channel(mean, x))
    scale = invstd if weight is None else invstd * weight
    return (by_y * per_channel(scale, x)).to(x.dtype)


for name, kernel in {
    "batch_norm_stats": stats,
    "batch_norm_gather_stats_with_counts": gather_stats,
    "batch_norm_elemt": normalize,
    "batch_norm_backward_reduce": backward_sums,
    "batch_norm_backward_elemt": backward,
}.items():
    LIBRARY.impl(name, kernel)  # type: ignore[no-untyped-call]
