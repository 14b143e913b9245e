"""Triplet loss: make each positive closer than the negatives by a margin, for all triplets or mined ones."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import cosine_matrix, negative_distance_matrix
from nearfar.ops.pairs import Pairs, ratio, softplus, to_one
from nearfar.ops.triplets import mean_over_triplets, semi_hard_negatives
from nearfar.validation import check_choice, check_not_negative


@register("triplet")
class TripletMarginLoss(PairLoss):
    """Triplet loss (Schroff et al., CVPR 2015; PROFS, arXiv 1907.07585, Eq. 3.2), on unit vectors.

    The loss is the mean over triplets (anchor a, positive p, negative n) of [t]_+ with t = margin + dist_ap - dist_an.
    In a batch from the PROFS sampler (`nearfar.samplers.Profs`), the triplets are (class representative, its j-th
    positive, its j-th closest negative), whatever `mining` is.

    Args:
        margin: The margin. The default is from Schroff et al. and PROFS. The smooth baseline of BSPML (arXiv
            2211.11751) uses smooth=True, squared=False and margin=0.
        squared: If True, dist is the squared Euclidean distance D^2; otherwise it is D.
        smooth: If True, use log(1 + e^t) instead of [t]_+.
        mining: "all" uses every triplet. "hard" uses the farthest positive and the closest negative of each anchor
            (Hermans et al., arXiv 1703.07737). "semi-hard" uses, for each anchor and positive, the closest negative
            that is strictly farther than the positive; without such a negative, the pair is left out (Schroff et al.).
            "paired" combines the j-th closest positive of each anchor with its j-th closest negative, so that each
            positive pair is in one triplet, or in none if the anchor has fewer than j negatives (the Triplet-Hard
            baseline of PROFS).
        average: "all" divides by the number of triplets, "nonzero" by the number of triplets with a cost above 0.

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
        self.margin, self.squared, self.smooth = check_not_negative("margin", margin), squared, smooth
        self.mining = check_choice("mining", mining, ("all", "hard", "semi-hard", "paired"))
        self.average = check_choice("average", average, ("all", "nonzero"))

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return cosine_matrix(x, y) if self.squared else negative_distance_matrix(x, y)

    @property
    def slope(self) -> float:
        """Return the slope in dist_ap - dist_an = slope (sim_an - sim_ap).

        If `squared` is set, dist is D^2 = 2 - 2 S and sim is the cosine S. Otherwise dist is D and sim is -D.
        """
        return 2.0 if self.squared else 1.0

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if batch.representatives or self.mining == "paired":
            return self.mean_cost(*paired_triplets(pairs, by_similarity=not batch.representatives))
        if self.mining == "hard":
            return self.mean_cost(*hardest_triplets(pairs))
        if self.mining == "semi-hard":
            return self.mean_cost(*semi_hard_triplets(pairs))
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

    def mean_cost(self, gap: Tensor, mass: Tensor) -> Tensor:
        """Compute the mean cost of triplets.

        Args:
            gap: sim_an - sim_ap of each triplet.
            mass: The weights of the triplets; 0 where there is no triplet.
        """
        t = self.margin + self.slope * torch.where(mass > 0, gap, 0.0)
        costs = softplus(t) if self.smooth else t.relu()
        if self.average == "nonzero":
            mass = torch.where(costs.detach() > 0, mass, 0.0)
        return ratio((costs * mass).sum(), mass.sum())


def hardest_triplets(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return sim_an - sim_ap and the weights of the hard triplets (anchor a, positive p, negative n), each [A].

    Each anchor has one triplet, with its farthest positive and its closest negative. The weight is 0 for an anchor
    without positives or without negatives.
    """
    farthest, p = torch.where(pairs.same, pairs.sim, torch.inf).min(1)
    closest, n = torch.where(pairs.diff, pairs.sim, -torch.inf).max(1)
    mass = (pairs.same.any(1) & pairs.diff.any(1)).to(pairs.sim.dtype)
    if pairs.weights is not None and pairs.ref_weights is not None:
        r = to_one(pairs.ref_weights)
        mass = mass * to_one(pairs.weights) * r[p] * r[n]
    return closest - farthest, mass


def semi_hard_triplets(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return sim_an - sim_ap and the weights of the semi-hard triplets (anchor a, positive p, negative n).

    Both results have the shape of `pairs.sim`. Entry [a, p] belongs to the triplet of the positive pair (a, p) and the
    closest negative that is farther from the anchor than the positive. The weight is 0 if there is no such negative,
    and for all entries that are not positive pairs.
    """
    n = semi_hard_negatives(pairs.sim.detach(), pairs.same, pairs.diff)
    mass = (n >= 0).to(pairs.sim.dtype)
    n = n.clamp_min(0)
    if pairs.weights is not None and pairs.ref_weights is not None:
        r = to_one(pairs.ref_weights)
        mass = mass * to_one(pairs.weights)[:, None] * r * r[n]
    return pairs.sim.gather(1, n) - pairs.sim, mass


def paired_triplets(pairs: Pairs, *, by_similarity: bool) -> tuple[Tensor, Tensor]:
    """Return sim_an - sim_ap and the weights of triplets (anchor a, positive p, negative n).

    Both results have the shape of `pairs.sim`. Entry [a, p] belongs to the triplet of the positive pair (a, p). The
    j-th positive of each anchor is combined with its j-th closest negative. The weight is 0 if the anchor has fewer
    than j negatives, and for all entries that are not positive pairs.

    Args:
        pairs: The pairs.
        by_similarity: If True, the positives of each anchor are numbered by decreasing similarity (mining="paired").
            If False, they are numbered in the order of the batch (PROFS).
    """
    closest, n = torch.where(pairs.diff, pairs.sim, -torch.inf).sort(dim=1, descending=True, stable=True)
    if by_similarity:
        order = torch.where(pairs.same, pairs.sim.detach(), -torch.inf).argsort(dim=1, descending=True, stable=True)
        j = order.argsort(dim=1)  # the inverse permutation: the rank of each positive
    else:
        j = (pairs.same.cumsum(1) - 1).clamp_min(0)
    matched = closest.gather(1, j)
    mass = (pairs.same & (matched > -torch.inf)).to(pairs.sim.dtype)
    if pairs.weights is not None and pairs.ref_weights is not None:
        r = to_one(pairs.ref_weights)
        mass = mass * to_one(pairs.weights)[:, None] * r * r[n].gather(1, j)
    return matched - pairs.sim, mass
