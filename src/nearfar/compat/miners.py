"""Miners select the pairs or triplets that a loss uses, and return them as tuples of indices.

They compute no gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar import mining
from nearfar.compat.arguments import absent
from nearfar.compat.base_miner import BaseMiner, HardnessMiner, Miner, PairIndices, Triplets, indices_of
from nearfar.compat.distances import BaseDistance, CosineSimilarity, Distance
from nearfar.compat.more_miners import (
    AngularMiner,
    BatchEasyHardMiner,
    EmbeddingsAlreadyPackagedAsTriplets,
    HDCMiner,
    UniformHistogramMiner,
)
from nearfar.ops.pairs import Pairs, ratio
from nearfar.ops.triplets import positive_table
from nearfar.validation import check_choice

__all__ = [
    "AngularMiner",
    "BaseMiner",
    "BatchEasyHardMiner",
    "BatchHardMiner",
    "DistanceWeightedMiner",
    "EmbeddingsAlreadyPackagedAsTriplets",
    "HDCMiner",
    "MultiSimilarityMiner",
    "PairMarginMiner",
    "TripletMarginMiner",
    "UniformHistogramMiner",
]


class MultiSimilarityMiner(Miner):
    """Select pairs with `nearfar.mining.multi_similarity`."""

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(
        self, epsilon: float = 0.1, *, distance: Distance | None = None, collect_stats: bool | None = None
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.epsilon = epsilon

    def select(self, pairs: Pairs, dim: int) -> PairIndices:
        return indices_of(mining.multi_similarity(pairs, epsilon=self.epsilon))


class BatchHardMiner(HardnessMiner):
    """Select one triplet for each anchor that has both positives and negatives.

    The positive and the negative of the triplet are those that `nearfar.mining.hardest` selects for the anchor.
    """

    def select(self, pairs: Pairs, dim: int) -> Triplets:
        both = (pairs.same.any(1) & pairs.diff.any(1)).nonzero().flatten()
        hard = mining.hardest(pairs)
        same, diff = (mask[both].view(torch.uint8).argmax(1) for mask in (hard.same, hard.diff))
        self.store_extremes(pairs.sim[both, same], pairs.sim[both, diff], triplets=True)
        return both, same, diff


class PairMarginMiner(Miner):
    """Select positive pairs farther than `pos_margin` and negative pairs closer than `neg_margin`.

    The statistics are the mean distances of all positive and of all negative pairs.
    """

    statistics = ("pos_pair_dist", "neg_pair_dist")

    def __init__(
        self,
        pos_margin: float = 0.2,
        neg_margin: float = 0.8,
        *,
        distance: Distance | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.pos_margin, self.neg_margin = pos_margin, neg_margin

    def select(self, pairs: Pairs, dim: int) -> PairIndices:
        sign = self.distance.sign
        if self.collect_stats:
            means = (ratio(pairs.sim[mask].sum(), mask.sum()) for mask in (pairs.same, pairs.diff))
            self.store(**dict(zip(self.statistics, (sign * mean for mean in means), strict=True)))
        far, near = pairs.sim < sign * self.pos_margin, pairs.sim > sign * self.neg_margin
        return indices_of(Pairs(pairs.sim, pairs.same & far, pairs.diff & near))


class TripletMarginMiner(Miner):
    """Select triplets of anchor a, positive p and negative n by a value t.

    For a distance D, t = D_an - D_ap. For a similarity S, t = S_ap - S_an. The miner stores only the selected triplets.
    It makes P passes over the distance matrix, where P is the largest number of positives of an anchor.

    Args:
        margin: Threshold for t.
        type_of_triplets: "all" selects the triplets with t <= margin. "hard" selects those with t <= margin and t <= 0,
            "semihard" those with 0 < t <= margin, and "easy" those with t > margin.
        distance: The distance.
        collect_stats: Whether to store the means of t and of the two distances over all triplets, not only over the
            selected ones.
    """

    statistics = ("avg_triplet_margin", "pos_pair_dist", "neg_pair_dist")

    def __init__(
        self,
        margin: float = 0.2,
        type_of_triplets: str = "all",
        *,
        distance: Distance | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.margin = margin
        self.type_of_triplets = check_choice("type_of_triplets", type_of_triplets, ("all", "hard", "semihard", "easy"))

    def is_selected(self, t: Tensor) -> Tensor:
        """Return the mask of the triplets to select, given their values t (see the class)."""
        if self.type_of_triplets == "easy":
            return t > self.margin
        if self.type_of_triplets == "hard":
            return t <= min(self.margin, 0.0)
        violating = t <= self.margin
        return violating & (t > 0) if self.type_of_triplets == "semihard" else violating

    def select(self, pairs: Pairs, dim: int) -> Triplets:
        if self.collect_stats:
            self.store_means(pairs)
        positive, columns = positive_table(pairs.sim, pairs.same)
        parts = []
        for k in range(columns.shape[1]):
            candidates = pairs.diff & torch.isfinite(positive[:, k : k + 1])
            a, n = (candidates & self.is_selected(positive[:, k : k + 1] - pairs.sim)).nonzero(as_tuple=True)
            parts.append(torch.stack([a, columns[a, k], n]))
        a, p, n = torch.cat(parts, 1) if parts else columns.new_zeros(3, 0)
        return a, p, n

    def store_means(self, pairs: Pairs) -> None:
        """Store the statistics. A pair counts as often as it occurs in a triplet."""
        same, diff = pairs.same.to(pairs.sim.dtype), pairs.diff.to(pairs.sim.dtype)
        total = (same.sum(1) * diff.sum(1)).sum()
        positive = ratio(((pairs.sim * same).sum(1) * diff.sum(1)).sum(), total)
        negative = ratio(((pairs.sim * diff).sum(1) * same.sum(1)).sum(), total)
        sign = self.distance.sign
        self.store(avg_triplet_margin=positive - negative, pos_pair_dist=sign * positive, neg_pair_dist=sign * negative)


class DistanceWeightedMiner(Miner):
    """Draw one negative for each positive pair, weighted by distance as in `nearfar.mining.distance_weighted`.

    Negatives are drawn with replacement. Only negatives closer than `nonzero_loss_cutoff` are drawn; an anchor without
    such negatives has no triplets. Every other anchor has one triplet for each of its positives.

    The weights are those of pytorch-metric-learning, but they are normalized for each anchor separately, so no anchor
    is lost if the weights underflow. pytorch-metric-learning draws the positives too. The same seed therefore gives
    different triplets in the two libraries.
    """

    only_distance = True

    def __init__(
        self,
        cutoff: float = 0.5,
        nonzero_loss_cutoff: float = 1.4,
        *,
        distance: Distance | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.cutoff, self.nonzero_loss_cutoff = cutoff, nonzero_loss_cutoff

    def select(self, pairs: Pairs, dim: int) -> Triplets:
        distances = -pairs.sim
        log_w = mining.log_inverse_density(distances.clamp_min(self.cutoff).square(), dim)
        # At cutoff=0, the weight of a negative at distance 0 is infinite. pytorch-metric-learning leaves it out.
        drawable = pairs.diff & (distances.clamp_min(self.cutoff) < self.nonzero_loss_cutoff)
        drawable &= (distances > 0) | (self.cutoff > 0)
        anchors = drawable.any(1) & pairs.same.any(1)
        a, p = (pairs.same & anchors[:, None]).nonzero(as_tuple=True)
        if len(a) == 0:
            return a, p, a.clone()
        weights = torch.where(drawable, log_w, -torch.inf).softmax(1)
        position = (pairs.same.cumsum(1) - 1)[a, p]  # index of this positive among the positives of its anchor
        drawn = a.new_zeros(len(anchors), int(position.max()) + 1)
        drawn[anchors] = torch.multinomial(weights[anchors], drawn.shape[1], replacement=True)
        return a, p, drawn[a, position]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("miners", name, __all__)
