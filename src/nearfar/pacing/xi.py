"""The hardness of each training sample: xi+ compares it with its own class, xi- with all other classes."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.ops.geometry import unit
from nearfar.validation import check_embeddings, check_labels, check_positive

MEMORY_MB = 256


@torch.no_grad()
def hardness(
    embeddings: Tensor,
    labels: Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    threshold: float = 1.0,
    memory_mb: int = MEMORY_MB,
) -> tuple[Tensor, Tensor]:
    """Compute xi+ and xi- of every sample, each [N] (BSPML, Zhang et al., AAAI 2023, arXiv 2211.11751, below Eq. 3).

    xi+_i = (1/alpha) log(1 + sum_{p in class, p != i} e^{-alpha (S_ip - threshold)})
    xi-_i = (1/beta) log(1 + sum_{n not in class} e^{beta (S_in - threshold)})

    S is the cosine similarity. The sums are over all training samples, without mining. The defaults of `alpha`, `beta`
    and `threshold` (rho in the paper) are from the paper. A sample without other samples in its class has xi+ = 0.
    float64 embeddings are compared in float64, all others in float32.

    The similarity matrix is computed in blocks of rows. A block and a copy of it take at most `memory_mb` MiB. Samples
    are sorted by class, so that the positives of a block are contiguous columns.

    >>> pos, neg = hardness(torch.eye(2), torch.tensor([0, 0]))
    >>> pos  # 1/2 log(1 + e^2)
    tensor([1.0635, 1.0635])
    >>> neg
    tensor([0., 0.])
    """
    check_embeddings("embeddings", embeddings)
    check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
    if labels.ndim != 1:
        raise ValueError(f"labels must be class ids of shape [N], got shape {list(labels.shape)}")
    check_positive("alpha", alpha)
    check_positive("beta", beta)
    labels = labels.to(embeddings.device)
    order = torch.argsort(labels, stable=True)
    ids = labels[order]
    rows = unit(embeddings if embeddings.dtype == torch.float64 else embeddings.float())[order]
    number = torch.cat([ids.new_zeros(1, dtype=torch.int64), (ids.diff() != 0).cumsum(0)])
    sizes = number.bincount()
    ends = sizes.cumsum(0)
    begins = ends - sizes

    pos, neg = torch.empty_like(rows[:, 0]), torch.empty_like(rows[:, 0])
    step = max(1, memory_mb * 2**20 // (2 * rows.element_size() * len(rows)))
    for start in range(0, len(rows), step):
        here = slice(start, start + step)
        first, last = number[here][0], number[here][-1]
        own = slice(int(begins[first]), int(ends[last]))
        sim = rows[here] @ rows.T
        same = ids[here, None] == ids[None, own]
        near = torch.where(same, (sim[:, own] - threshold) * -alpha, -torch.inf)
        near.diagonal(start - own.start)[: len(sim)] = -torch.inf
        pos[here] = log_one_plus_sum(near) / alpha
        sim.sub_(threshold).mul_(beta)
        sim[:, own].masked_fill_(same, -torch.inf)
        neg[here] = log_one_plus_sum(sim) / beta
    return torch.empty_like(pos).scatter_(0, order, pos), torch.empty_like(neg).scatter_(0, order, neg)


def log_one_plus_sum(logits: Tensor) -> Tensor:
    """Compute log(1 + sum_j e^{z_ij}) for every row i of the logits z, which are overwritten.

    The result does not overflow, and small sums are not rounded to 0.
    """
    top = logits.amax(1, keepdim=True).clamp_min(0)
    total = logits.sub_(top).exp_().sum(1)
    # log(1 + e^top total) = top + log(e^-top + total). If top = 0, this is log1p(total).
    top = top[:, 0]
    return torch.where(top > 0, top + torch.log(torch.exp(-top) + total), torch.log1p(total))
