"""Measure how compact an embedding space is: the mean cosine of all pairs of samples, and of all pairs of proxies.

Li et al. (Proxy-ISA, arXiv 2211.10382, appendix D) compare losses by how far they disperse the embedding space.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses import Loss, ProxyLoss
from nearfar.losses.combined import losses_of
from nearfar.losses.proxies.sharded import ShardedProxies, sum_over_processes
from nearfar.ops.geometry import unit


def mean_cosine(x: Tensor, *, is_sharded: bool = False) -> float | None:
    """Compute the mean cosine over all pairs of different vectors of x [N, d], in O(N d).

    With unit vectors u_i, the sum over ordered pairs i != j of u_i . u_j is |sum_i u_i|^2 - sum_i |u_i|^2. A zero
    vector has cosine 0 with every other vector.

    Args:
        x: The vectors.
        is_sharded: If True, each process holds a part of the vectors, and every process must make this call.

    Returns:
        The mean, or None if there are fewer than two vectors.

    >>> mean_cosine(torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))  # doctest: +ELLIPSIS
    -0.333...
    >>> mean_cosine(torch.ones(1, 2)) is None
    True
    """
    u = unit(x.detach().to(torch.promote_types(x.dtype, torch.float32)))
    sums = torch.cat([u.sum(0), (u * u).sum()[None], u.new_tensor([len(u)])])
    if is_sharded:
        sums = sum_over_processes(sums)
    sums = sums.cpu().double()
    total, own, n = sums[:-2], float(sums[-2]), int(sums[-1])
    return None if n < 2 else (float(total @ total) - own) / (n * (n - 1))


def measure_compactness(embeddings: Tensor, loss: Loss) -> dict[str, float]:
    """Return the mean cosine of all pairs of embeddings [N, d] ("samples") and of the loss's proxies ("proxies").

    All proxies are compared with each other, including proxies of the same class. A loss without proxies gives
    only "samples". For a combined loss, the proxies are those of its first loss that has proxies.
    """
    means = {"samples": mean_cosine(embeddings)}
    is_sharded = isinstance(loss, ShardedProxies)
    holders = [loss.loss] if isinstance(loss, ShardedProxies) else losses_of(loss)
    holder = next((each for each in holders if isinstance(each, ProxyLoss)), None)
    if holder is not None:
        means["proxies"] = mean_cosine(holder.proxies.flatten(0, -2), is_sharded=is_sharded)
    return {name: mean for name, mean in means.items() if mean is not None}
