"""Dynamic soft margin: weight each triplet by its rank among past triplets.

The loss (Zhang and Rusinkiewicz, ICCV 2019, "Learning local descriptors with a CDF-based dynamic soft margin") is the
mean over triplets of c(g) g with the gap g = D_ap - D_an, where c(g) is the fraction of past gaps that are at most g. A
running histogram estimates this fraction. The caller stores the histogram; these functions have no state.
"""

from __future__ import annotations

import torch
from torch import Tensor


def closest_gaps(distances: Tensor) -> Tensor:
    """Compute the distance of each positive pair minus the distance of its closest negative pair.

    For the distances D [B, B], the result for pair i is D_ii - min(min_{j != i} D_ij, min_{j != i} D_ji). Row i and
    column i are a positive pair. The matrix can also have a shape [A, R] with A != R. D_ii is then 0 for a sample
    without a partner, and the minimum over a missing row or column is 0, as in pytorch-metric-learning.
    """
    rows, columns = distances.shape
    size = max(rows, columns)
    own = torch.eye(rows, columns, dtype=torch.bool, device=distances.device)
    others = distances.masked_fill(own, torch.inf)
    positive, by_row, by_column = (distances.new_zeros(size) for _ in range(3))
    positive[: min(rows, columns)] = distances.diagonal()
    by_row[:rows], by_column[:columns] = others.amin(1), others.amin(0)
    return positive - torch.minimum(by_row, by_column)


def update_histogram(histogram: Tensor, position: Tensor, momentum: float) -> Tensor:
    """Add new values to a running histogram. Return the new histogram, scaled so that its sum is 1.

    Each value is split between the two nodes next to it by linear interpolation.

    Args:
        histogram: The histogram at the nodes 0, 1, ...; all zeros if there are no past values.
        position: The new values [N], in units of the distance between nodes.
        momentum: The weight of each new value. The past histogram has the weight 1 - momentum. If there are no past
            values, the weight of each new value is 1.

    >>> update_histogram(torch.zeros(4), torch.tensor([0.0, 1.5]), 0.1)
    tensor([0.5000, 0.2500, 0.2500, 0.0000])
    """
    share = torch.where(histogram.sum() > 0, momentum, 1.0).to(histogram)
    node = position.floor().long().clamp(0, len(histogram) - 2)
    above = position - node
    mixed = (1 - share) * histogram
    mixed = mixed.index_add(0, node, share * (1 - above)).index_add(0, node + 1, share * above)
    return mixed / mixed.sum()


def cumulative_share(histogram: Tensor, position: Tensor) -> Tensor:
    """Sum the histogram up to the node at or below each of the N values in `position`. The result has shape [N]."""
    return histogram.cumsum(0)[position.floor().long().clamp(0, len(histogram) - 1)]
