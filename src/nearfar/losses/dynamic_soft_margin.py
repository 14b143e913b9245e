"""Dynamic soft margin: weight each triplet by its rank among past triplets.

The loss (Zhang and Rusinkiewicz, ICCV 2019, "Learning local descriptors with a CDF-based dynamic soft margin") is the
mean of c(g) g over triplets with the gap g = D_ap - D_an, where c(g) is the share of gaps of at most g in a running
histogram. The histogram is part of the state of a loss, not of these functions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def closest_gaps(distances: Tensor) -> Tensor:
    """Compute D_ii - min(min_{j != i} D_ij, min_{j != i} D_ji) for aligned pairs, from their distances [B, B].

    If the matrix [A, R] is not square, a sample without a partner has the positive distance 0, and a missing row or
    column has the minimum 0, as in pytorch-metric-learning.
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
    """Mix a histogram with that of new values, each split between two nodes. Return one with the sum 1.

    Args:
        histogram: The histogram at the nodes 0, 1, ...; all zeros if there are no past values.
        position: The new values in units of nodes, [N].
        momentum: The share of the new values. It is 1 if there are no past values.

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
    """Return the share of past values up to the node at or below each value, [N]."""
    return histogram.cumsum(0)[position.floor().long().clamp(0, len(histogram) - 1)]
