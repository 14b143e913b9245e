"""Miners select the pairs or triplets that a loss uses, and return them as tuples of indices.

No gradients are computed. "The peer" is pytorch-metric-learning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar import mining
from nearfar.compat.arguments import absent
from nearfar.compat.distances import BaseDistance, CosineSimilarity, Distance, LpDistance, checked
from nearfar.compat.metric_loss import comparable_labels
from nearfar.compat.utils.common_functions import Recorded
from nearfar.losses.pair_loss import make_batch
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.ops.triplets import positive_table
from nearfar.validation import check_choice

__all__ = [
    "BatchHardMiner",
    "DistanceWeightedMiner",
    "MultiSimilarityMiner",
    "PairMarginMiner",
    "TripletMarginMiner",
]

Triplets = tuple[Tensor, Tensor, Tensor]
PairIndices = tuple[Tensor, Tensor, Tensor, Tensor]


class Miner(Recorded):
    """Base class of miners.

    Anchors are indices into the batch. Positives and negatives are indices into the references if there are any,
    otherwise into the batch.
    """

    only_distance = False

    def __init__(self, *, distance: Distance | None = None, collect_stats: bool | None = None) -> None:
        super().__init__(collect_stats=collect_stats)
        self.distance = checked(self, distance, self.get_default_distance(), only=self.only_distance)

    def get_default_distance(self) -> BaseDistance:
        """Return the distance that is used unless the user passes one."""
        return LpDistance()

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Triplets | PairIndices:
        if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
            ref_emb, ref_labels = None, None
        ids = comparable_labels(labels, ref_labels).to(embeddings.device)
        ref_ids = None if ref_labels is None else comparable_labels(ref_labels, labels).to(embeddings.device)
        batch = make_batch(embeddings, ids, ref_emb, ref_ids, None, None)
        with torch.autocast(embeddings.device.type, enabled=False):
            masks = pair_masks(batch.labels, None if ref_labels is labels else batch.ref_labels)
            return self.mine(Pairs(self.distance.similarity(batch.emb, batch.ref_emb), *masks), embeddings.shape[1])

    def mine(self, pairs: Pairs, dim: int) -> Triplets | PairIndices:
        """Select pairs or triplets; `dim` is the dimension of the embeddings."""
        raise NotImplementedError


def indices_of(pairs: Pairs) -> PairIndices:
    """Return the indices (anchors, positives, anchors, negatives) of the pairs in the masks."""
    a1, p = pairs.same.nonzero(as_tuple=True)
    a2, n = pairs.diff.nonzero(as_tuple=True)
    return a1, p, a2, n


class MultiSimilarityMiner(Miner):
    """Select pairs with `nearfar.mining.multi_similarity`."""

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(
        self, epsilon: float = 0.1, *, distance: Distance | None = None, collect_stats: bool | None = None
    ) -> None:
        super().__init__(distance=distance, collect_stats=collect_stats)
        self.epsilon = epsilon

    def mine(self, pairs: Pairs, dim: int) -> PairIndices:
        return indices_of(mining.multi_similarity(pairs, epsilon=self.epsilon))


class BatchHardMiner(Miner):
    """Select one triplet for each anchor that has both positives and negatives.

    It consists of the anchor and the positive and negative that `nearfar.mining.hardest` selects for it.
    """

    def mine(self, pairs: Pairs, dim: int) -> Triplets:
        both = (pairs.same.any(1) & pairs.diff.any(1)).nonzero().flatten()
        hard = mining.hardest(pairs)
        same, diff = (mask[both].view(torch.uint8).argmax(1) for mask in (hard.same, hard.diff))
        return both, same, diff


class PairMarginMiner(Miner):
    """Select positive pairs farther than pos_margin and negative pairs closer than neg_margin."""

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

    def mine(self, pairs: Pairs, dim: int) -> PairIndices:
        sign = self.distance.sign
        far, near = pairs.sim < sign * self.pos_margin, pairs.sim > sign * self.neg_margin
        return indices_of(Pairs(pairs.sim, pairs.same & far, pairs.diff & near))


class TripletMarginMiner(Miner):
    """Select triplets of anchor a, positive p and negative n by a value t.

    For a distance D, t = D_an - D_ap. For a similarity S, t = S_ap - S_an. Mining makes one pass over the matrix for
    every positive of an anchor. Only the selected triplets are stored.

    Args:
        margin: Threshold for t.
        type_of_triplets: "all" selects the triplets with t <= margin, "hard" those of them with t <= 0, "semihard"
            those of them with t > 0. "easy" selects the triplets with t > margin.
        distance: The distance.
        collect_stats: Not supported.
    """

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
        """Return which values of t to select, as a mask."""
        if self.type_of_triplets == "easy":
            return t > self.margin
        if self.type_of_triplets == "hard":
            return t <= min(self.margin, 0.0)
        violating = t <= self.margin
        return violating & (t > 0) if self.type_of_triplets == "semihard" else violating

    def mine(self, pairs: Pairs, dim: int) -> Triplets:
        positive, columns = positive_table(pairs.sim, pairs.same)
        parts = []
        for k in range(columns.shape[1]):
            candidates = pairs.diff & torch.isfinite(positive[:, k : k + 1])
            a, n = (candidates & self.is_selected(positive[:, k : k + 1] - pairs.sim)).nonzero(as_tuple=True)
            parts.append(torch.stack([a, columns[a, k], n]))
        a, p, n = torch.cat(parts, 1) if parts else columns.new_zeros(3, 0)
        return a, p, n


class DistanceWeightedMiner(Miner):
    """Draw one negative for each positive pair, weighted by distance as in `nearfar.mining.distance_weighted`.

    Negatives are drawn with replacement. Only negatives closer than `nonzero_loss_cutoff` are drawn; an anchor without
    any has no triplets. The weights are those of the peer, but each anchor is normalized separately, so no anchor is
    lost if the weights underflow. Positives are not drawn: every positive pair is in one triplet. The same seed
    therefore gives different triplets than in the peer.
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

    def mine(self, pairs: Pairs, dim: int) -> Triplets:
        distances = -pairs.sim
        log_w = mining.log_inverse_density(distances.clamp_min(self.cutoff).square(), dim)
        # At cutoff=0, the weight of a negative at distance 0 is infinite. The peer leaves it out.
        drawable = pairs.diff & (distances.clamp_min(self.cutoff) < self.nonzero_loss_cutoff)
        drawable &= (distances > 0) | (self.cutoff > 0)
        anchors = drawable.any(1) & pairs.same.any(1)
        a, p = (pairs.same & anchors[:, None]).nonzero(as_tuple=True)
        if len(a) == 0:
            return a, p, a.clone()
        weights = torch.where(drawable, log_w, -torch.inf).softmax(1)
        position = (pairs.same.cumsum(1) - 1)[a, p]  # the number of positives of the anchor before this one
        drawn = a.new_zeros(len(anchors), int(position.max()) + 1)
        drawn[anchors] = torch.multinomial(weights[anchors], drawn.shape[1], replacement=True)
        return a, p, drawn[a, position]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("miners", name, __all__)
