"""Miners select the pairs or triplets that a loss uses, and return them as tuples of indices.

No gradients are computed. "The peer" is pytorch-metric-learning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nearfar import mining
from nearfar.compat.arguments import absent, refuse
from nearfar.compat.distances import CosineSimilarity, Distance, LpDistance, checked
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


class Miner(torch.nn.Module):
    """Base class of miners.

    Anchors are indices into the batch. Positives and negatives are indices into the references if there are any,
    otherwise into the batch.
    """

    default_distance: Distance = LpDistance()
    only_distance = False

    def __init__(self, *, distance: Distance | None = None, collect_stats: bool | None = None) -> None:
        super().__init__()
        refuse(self, {"collect_stats": collect_stats}, but=())
        self.distance = checked(self, distance, self.default_distance, only=self.only_distance)

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Triplets | PairIndices:
        if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
            ref_emb, ref_labels = None, None
        batch = make_batch(embeddings, labels, ref_emb, ref_labels, None, None)
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

    default_distance = CosineSimilarity()

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
    """Draw negatives with `nearfar.mining.distance_weighted`, and return them as triplets.

    The j-th triplet of an anchor has its j-th positive and its j-th drawn negative. An anchor with fewer negatives than
    positives has no triplets. The weights are those of the peer, but negatives are drawn without replacement, and no
    anchor is lost if the weights underflow. The same seed therefore gives different triplets than in the peer.
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
        drawn = mining.distance_weighted(
            pairs,
            dim=dim,
            distances=-pairs.sim,
            cutoff=self.cutoff,
            nonzero_loss_cutoff=self.nonzero_loss_cutoff,
        )
        matched = (drawn.same.sum(1) == drawn.diff.sum(1))[:, None]
        a, p, _, n = indices_of(Pairs(drawn.sim, drawn.same & matched, drawn.diff & matched))
        return a, p, n


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("miners", name, __all__)
