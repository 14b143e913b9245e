"""Smooth-AP: average precision with ranks that are computed from sigmoids instead of step functions."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.custom_grad import analytic
from nearfar.ops.pairs import Pairs
from nearfar.ops.triplets import anchor_shares, positive_table
from nearfar.validation import check_positive


@register("smooth-ap")
class SmoothAPLoss(PairLoss):
    """Smooth-AP (Brown et al., ECCV 2020, arXiv 2007.12163, Eq. 8), on cosines S, for any class sizes.

    The loss is the mean over anchors i with positives P_i of 1 - (1/|P_i|) sum_{p in P_i} rank+(p) / rank(p), where
    rank+(p) = 1 + sum_{j in P_i, j != p} g_j, rank(p) = 1 + sum_{j != i, j != p} g_j and
    g_j = sigmoid((S_ij - S_ip) / temperature). The anchor is not one of its own positives; the released code includes
    it. The weight of a sample j multiplies g_j, and the weight of a positive p multiplies its term in the mean. The
    leading 1 of the ranks has no weight.

    The computation makes one pass over the similarity matrix per positive. For a batch of B samples and P positives per
    anchor, the time is O(B^2 P), and the memory is about 6 B^2 floats.

    Args:
        temperature: The temperature of the sigmoid. The default is from the paper.

    >>> SmoothAPLoss()(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
    tensor(0.)
    """

    def __init__(self, *, temperature: float = 0.01) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
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
    """Compute the weighted mean of 1 - smooth AP over anchors with positives, and its gradient with respect to sim."""
    gradient = torch.zeros_like(sim)
    table, columns = positive_table(sim, same)
    has, anchor_share = anchor_shares(same, weights, sim.dtype)
    if columns.shape[1] == 0:
        return sim.new_zeros(()), gradient
    r = torch.ones_like(sim[0]) if ref_weights is None else ref_weights
    r_p = torch.where(torch.isfinite(table), r[columns], 0.0)  # weights of the positives; 0 in the padding
    share = anchor_share / torch.where(has, r_p.sum(1), 1.0)  # weight of the term of each positive
    scaled = torch.where(same | diff, sim, -torch.inf).div_(temperature)
    value = anchor_share.sum()
    g, slope = torch.empty_like(sim), torch.empty_like(sim)
    for k in range(columns.shape[1]):
        column = columns[:, k : k + 1]
        torch.sub(scaled, table[:, k : k + 1] / temperature, out=g)
        g.scatter_(1, column, -torch.inf).sigmoid_()
        torch.addcmul(g, g, g, value=-1, out=slope)
        if ref_weights is not None:
            slope.mul_(r)
        rank_pos = 1 + (g.gather(1, columns) * r_p).sum(1, keepdim=True)
        rank = 1 + (g.sum(1) if ref_weights is None else g @ r)[:, None]
        w = r_p[:, k : k + 1] * share[:, None]
        value = value - (w * rank_pos / rank).sum()
        # d(-rank+/rank)/dg_j = r_j rank+/rank^2, minus r_j/rank if j is a positive. g_j is the sigmoid and r_j the
        # weight of sample j.
        all_terms = w * rank_pos / rank.square()
        positive_terms = torch.where(r_p > 0, slope.gather(1, columns), 0.0) * (w / rank)
        gradient.addcmul_(slope, all_terms)
        gradient.scatter_add_(1, columns, -positive_terms)
        own = positive_terms.sum(1, keepdim=True) - all_terms * slope.sum(1, keepdim=True)
        gradient.scatter_add_(1, column, own)
    return value, gradient.div_(temperature)
