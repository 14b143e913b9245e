"""Manifold similarity: compare samples with proxies by a random walk on the graph of their similarities.

The method is that of Aziere and Todorovic (CVPR 2019, "Ensemble deep manifold similarity learning using hard proxies").
"""

from __future__ import annotations

import torch
from torch import Tensor


def manifold(sim: Tensor, chosen: Tensor, alpha: float, margin: float) -> tuple[Tensor, Tensor]:
    """Compute the intrinsic and the context loss, two scalars.

    The similarities of N samples and K proxies, without negative values, make the affinities e^{2 S} of a graph. The
    stationary random walk with restarts on it is F = (1 - alpha) (I - alpha A)^-1 with the normalized affinities A. The
    intrinsic loss compares the entries F of each sample and the proxies, the context loss the cosines of their rows
    of F: the mean over samples of log(1 + sum_{k != y} e^{f_k - f_y + margin}), where y is the proxy of the sample and
    the sum is over the proxies k with f_k - f_y + margin >= 0.

    Args:
        sim: The similarities [N + K, N + K] of the samples, followed by the proxies.
        chosen: The number of the proxy of each sample [N].
        alpha: The share of its similarity that a node passes on, between 0 and 1.
        margin: The margin.
    """
    n = len(chosen)
    eye = torch.eye(len(sim), dtype=torch.bool, device=sim.device)
    affinity = (2 * sim.clamp_min(0)).exp().masked_fill(eye, 0.0)
    scale = affinity.sum(1).rsqrt()
    walk = (1 - alpha) * torch.linalg.inv(eye.to(sim.dtype) - alpha * scale[:, None] * affinity * scale)
    unit = torch.nn.functional.normalize(walk, dim=1, eps=1e-8)
    return margin_loss(walk[:n, n:], chosen, margin), margin_loss(unit[:n] @ unit[n:].T, chosen, margin)


def margin_loss(f: Tensor, chosen: Tensor, margin: float) -> Tensor:
    """Compute the mean over rows of log(1 + sum of e^{f_k - f_y + margin}) over the k != y whose exponent is >= 0."""
    gaps = f - f.gather(1, chosen[:, None]) + margin
    own = torch.zeros_like(gaps, dtype=torch.bool).scatter_(1, chosen[:, None], True)
    counted = ~own & (gaps.detach() >= 0)
    return torch.log1p(torch.where(counted, gaps.exp(), 0.0).sum(1)).mean()
