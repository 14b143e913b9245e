"""Triplet loss: a positive nearer than a negative by a margin, over all triplets or mined ones."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.geometry import cosine_matrix, unit_distance_matrix
from nearfar.ops.pairs import Pairs, ratio, softplus, to_one
from nearfar.ops.triplets import mean_over_triplets, semi_hard_negatives
from nearfar.validation import check_choice


@register("triplet")
class TripletMarginLoss(PairLoss):
    """Triplet loss (Schroff et al., CVPR 2015; PROFS, arXiv 1907.07585, Eq. 3.2), on unit vectors.

    t = margin + dist_ap - dist_an, dist = D^2 (default) or D with squared=False; a triplet costs [t]_+, or
    log(1 + e^t) with smooth=True.

    mining="all" (default): every (anchor, positive, negative), summed without listing them.
    mining="hard": per anchor its farthest positive and closest negative (Hermans et al., arXiv 1703.07737).
    mining="semi-hard": per (anchor, positive) the closest negative that is strictly farther than the positive; where
    there is none, no triplet (Schroff et al.).
    average="all" divides by the number of triplets, "nonzero" by the number of those with a cost.
    margin=0.2 is Schroff's and PROFS's; BSPML's smooth baseline is smooth=True, squared=False, margin=0.
    With `representatives` the triplets are (representative, its j-th positive, its j-th closest negative).

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> TripletMarginLoss()(x, torch.tensor([0, 0, 1]))  # triplets (0,1,2): 2 - 4 + 0.2, (1,0,2): 2 - 2 + 0.2
    tensor(0.1000)
    """

    def __init__(
        self,
        *,
        margin: float = 0.2,
        squared: bool = True,
        smooth: bool = False,
        mining: str = "all",
        average: str = "all",
    ) -> None:
        super().__init__()
        self.margin, self.squared, self.smooth = margin, squared, smooth
        self.mining = check_choice("mining", mining, ("all", "hard", "semi-hard"))
        self.average = check_choice("average", average, ("all", "nonzero"))

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return cosine_matrix(x, y) if self.squared else -unit_distance_matrix(x, y)

    @property
    def slope(self) -> float:
        """dist_ap - dist_an = slope (sim_an - sim_ap): D^2 = 2 - 2S, or D itself."""
        return 2.0 if self.squared else 1.0

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if batch.representatives:
            return self.mean_of(*representative_triplets(pairs))
        if self.mining == "hard":
            return self.mean_of(*hardest_triplets(pairs))
        if self.mining == "semi-hard":
            return self.mean_of(*semi_hard_triplets(pairs))
        return mean_over_triplets(
            pairs.sim,
            pairs.same,
            pairs.diff,
            pairs.weights,
            pairs.ref_weights,
            self.margin,
            self.slope,
            "softplus" if self.smooth else "hinge",
            0.0,
            self.average == "nonzero",
        )

    def mean_of(self, gap: Tensor, each: Tensor) -> Tensor:
        """Mean cost of triplets given by sim_an - sim_ap and their weights (0 where there is no triplet)."""
        t = self.margin + self.slope * torch.where(each > 0, gap, 0.0)
        costs = softplus(t) if self.smooth else t.relu()
        if self.average == "nonzero":
            each = torch.where(costs.detach() > 0, each, 0.0)
        return ratio((costs * each).sum(), each.sum())


def hardest_triplets(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """(sim_an - sim_ap, weight), each [A]: farthest positive and closest negative of every anchor that has both."""
    farthest, p = torch.where(pairs.same, pairs.sim, torch.inf).min(1)
    closest, n = torch.where(pairs.diff, pairs.sim, -torch.inf).max(1)
    each = (pairs.same.any(1) & pairs.diff.any(1)).to(pairs.sim.dtype)
    if pairs.weights is not None and pairs.ref_weights is not None:
        r = to_one(pairs.ref_weights)
        each = each * to_one(pairs.weights) * r[p] * r[n]
    return closest - farthest, each


def semi_hard_triplets(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """(sim_an - sim_ap, weight), each [A, R]: at a positive, with the closest negative strictly farther than it."""
    n = semi_hard_negatives(pairs.sim.detach(), pairs.same, pairs.diff)
    each = (n >= 0).to(pairs.sim.dtype)
    n = n.clamp_min(0)
    if pairs.weights is not None and pairs.ref_weights is not None:
        r = to_one(pairs.ref_weights)
        each = each * to_one(pairs.weights)[:, None] * r * r[n]
    return pairs.sim.gather(1, n) - pairs.sim, each


def representative_triplets(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """(sim_an - sim_ap, weight), each [A, R]: at the j-th positive of an anchor, with its j-th closest negative."""
    closest, n = torch.where(pairs.diff, pairs.sim, -torch.inf).sort(dim=1, descending=True, stable=True)
    j = (pairs.same.cumsum(1) - 1).clamp_min(0)
    matched = closest.gather(1, j)
    each = (pairs.same & (matched > -torch.inf)).to(pairs.sim.dtype)
    if pairs.weights is not None and pairs.ref_weights is not None:
        r = to_one(pairs.ref_weights)
        each = each * to_one(pairs.weights)[:, None] * r * r[n].gather(1, j)
    return matched - pairs.sim, each
