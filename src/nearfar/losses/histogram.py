"""Histogram loss: the probability that a random negative pair is more similar than a random positive pair."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_count


@register("histogram")
class HistogramLoss(PairLoss):
    """Histogram loss (Ustinova and Lempitsky, NeurIPS 2016, arXiv 1611.00822), on cosines S.

    The cosines of the positive and of the negative pairs are collected in two histograms h+ and h- with the nodes -1,
    -1 + 2/bins, ..., 1. A cosine between two nodes is split between them by linear interpolation. The loss is
    sum_r h-_r sum_{q <= r} h+_q. It is 0 if there are no positive or no negative pairs. Each pair contributes to its
    histogram in proportion to its weight.

    Args:
        bins: The number of intervals between nodes. The default is our choice.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> HistogramLoss()(x, torch.tensor([0, 0, 1])), HistogramLoss()(x, torch.tensor([0, 1, 0]))
    (tensor(0.), tensor(1.))
    """

    def __init__(self, *, bins: int = 100) -> None:
        super().__init__()
        self.bins = check_count("bins", bins)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return overlap(pairs.sim, pairs.shares(pairs.same), pairs.shares(pairs.diff), self.bins)


def overlap(sim: Tensor, pos: Tensor, neg: Tensor, bins: int) -> Tensor:
    """Compute the histogram loss from the cosines and the weights of the positive and of the negative pairs.

    The three matrices have one row per anchor and one column per sample that the anchors are compared with. See
    `HistogramLoss` for the formula.
    """
    z = (sim.clamp(-1, 1) + 1) * (bins / 2)
    node = z.detach().floor().clamp(0, bins - 1).long().flatten()
    above = z.flatten() - node
    h_pos, h_neg = (histogram(node, above, weights.flatten(), bins) for weights in (pos, neg))
    return (h_neg * h_pos.cumsum(0)).sum()


def histogram(node: Tensor, above: Tensor, weights: Tensor, bins: int) -> Tensor:
    """Compute a histogram with linear interpolation, [bins + 1]. Its sum is 1, or 0 if all weights are 0.

    Args:
        node: The node below each value [N].
        above: The position of each value between that node (0) and the next node (1), [N].
        weights: The weights of the values [N].
        bins: The number of intervals.
    """
    h = torch.zeros(bins + 1, dtype=above.dtype, device=above.device)
    h = h.index_add(0, node, weights * (1 - above)).index_add(0, node + 1, weights * above)
    return ratio(h, weights.sum())
