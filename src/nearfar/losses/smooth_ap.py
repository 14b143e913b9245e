"""Smooth-AP: average precision with the ranks' steps replaced by sigmoids."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.analytic import analytic
from nearfar.checks import check_positive
from nearfar.losses.pair_loss import Batch, PairLoss
from nearfar.pairs import Pairs
from nearfar.triples import positive_table


class SmoothAP(PairLoss):
    """Smooth-AP (Brown et al., ECCV 2020, arXiv 2007.12163, Eq. 8), on cosines, for any class sizes.

    Mean over anchors with positives of 1 - (1/|P_i|) sum_{p in P_i} rank+(p) / rank(p), rank+(p) = 1 + sum_{j in P_i,
    j != p} g and rank(p) = 1 + sum_{j != i, p} g with g = sigmoid((S_ij - S_ip) / temperature). temperature=0.01 is
    the paper's. The anchor itself is not one of its positives (the released code counts it). Weights multiply g and
    the positives' terms, the leading 1 (the positive itself) stays.

    One pass over the matrix a positive: O(B^2 P) time for P positives an anchor, and about 6 B^2 floats.

    >>> SmoothAP()(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
    tensor(0.)
    """

    def __init__(self, *, temperature: float = 0.01) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    def cost(self, pairs: Pairs, batch: Batch) -> Tensor:
        return smooth_ap(pairs.sim, pairs.same, pairs.diff, pairs.weights, pairs.ref_weights, self.temperature)


@analytic("smooth_ap")
def smooth_ap(
    sim: Tensor,
    same: Tensor,
    diff: Tensor,
    weights: Tensor | None,
    ref_weights: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Weighted mean over anchors with positives of 1 - smooth AP, and its gradient by sim."""
    gradient = torch.zeros_like(sim)
    table, columns = positive_table(sim, same)
    has = same.any(1)
    w_a = has.to(sim.dtype) if weights is None else torch.where(has, weights, 0.0)
    total = w_a.sum()
    if columns.shape[1] == 0 or total == 0:
        return sim.new_zeros(()), gradient
    r = torch.ones_like(sim[0]) if ref_weights is None else ref_weights
    r_same = torch.where(same, r, 0.0)
    scaled = torch.where(same | diff, sim / temperature, -torch.inf)
    share = w_a / total / torch.where(has, r_same.sum(1), 1.0)  # what one positive's term counts
    value = (w_a / total).sum()
    g, slope = torch.empty_like(sim), torch.empty_like(sim)
    for k in range(columns.shape[1]):
        column = columns[:, k : k + 1]
        there = torch.isfinite(table[:, k : k + 1])
        torch.sub(scaled, torch.where(there, table[:, k : k + 1] / temperature, torch.inf), out=g)
        g.scatter_(1, column, -torch.inf).sigmoid_()
        torch.addcmul(g, g, g, value=-1, out=slope)
        rank_pos = 1 + (g * r_same).sum(1, keepdim=True)
        rank = 1 + (g @ r)[:, None]
        w = torch.where(there, r[column] * share[:, None], 0.0)
        value = value - (w * rank_pos / rank).sum()
        # d(-rank+/rank)/dg_j = r_j (rank+/rank^2 - [j same]/rank)
        slope *= r * (w * rank_pos / rank.square()) - r_same * (w / rank)
        gradient += slope
        gradient.scatter_add_(1, column, -slope.sum(1, keepdim=True))
    return value, gradient.div_(temperature)
