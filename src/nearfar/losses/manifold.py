"""Manifold similarity: compare samples with proxies by a random walk on the graph of their similarities.

The method is that of Aziere and Todorovic (CVPR 2019, "Ensemble deep manifold similarity learning using hard proxies").
"""

from __future__ import annotations

import torch
from torch import Tensor


def manifold(sim: Tensor, chosen: Tensor, alpha: float, margin: float) -> tuple[Tensor, Tensor]:
    """Compute the intrinsic and the context loss, two scalars.

    The similarities S of N samples and K proxies, with negative values set to 0, define a graph with the affinities
    e^{2 S}. A random walk with restarts on this graph converges to F = (1 - alpha) (I - alpha A)^-1, where A are the
    normalized affinities. Both losses are the mean over samples of log(1 + sum_{k != y} e^{f_k - f_y + margin}), where
    y is the proxy of the sample and the sum is over the proxies k with f_k - f_y + margin >= 0. In the intrinsic loss,
    f_k is the entry of F for the sample and proxy k. In the context loss, f_k is the cosine between the row of the
    sample and the row of proxy k in F.

    Args:
        sim: The similarities [N + K, N + K] of the samples, followed by the proxies.
        chosen: The index of the proxy of each sample [N], from 0 to K - 1.
        alpha: The probability that the walk continues instead of restarting, between 0 and 1.
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
    """Compute the mean over samples of log(1 + sum_{k != y} e^{f_k - f_y + margin}).

    A row of f [N, K] has the values f_k of a sample for the K proxies, and y is its entry in `chosen`. The sum includes
    only exponents >= 0.
    """
    gaps = f - f.gather(1, chosen[:, None]) + margin
    own = torch.zeros_like(gaps, dtype=torch.bool).scatter_(1, chosen[:, None], True)
    counted = ~own & (gaps.detach() >= 0)
    return torch.log1p(torch.where(counted, gaps.exp(), 0.0).sum(1)).mean()
