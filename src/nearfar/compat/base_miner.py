"""The base classes of miners."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from nearfar.compat.distances import BaseDistance, Distance, LpDistance, checked
from nearfar.compat.metric_loss import check_rows, comparable_labels
from nearfar.compat.utils.common_functions import Recorded
from nearfar.losses.pair_batch import make_batch
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.ops.precision import without_autocast

Triplets = tuple[Tensor, Tensor, Tensor]
PairIndices = tuple[Tensor, Tensor, Tensor, Tensor]


COUNTS = ("num_pos_pairs", "num_neg_pairs", "num_triplets")


class BaseMiner(Recorded):
    """Base class of miners.

    To write a miner, implement `mine` in a subclass. If the caller passes no references (`ref_emb` and `ref_labels`),
    `mine` receives `embeddings` as `ref_emb` and `labels` as `ref_labels`.

    If `collect_stats` is True, the attribute `num_triplets`, or `num_pos_pairs` and `num_neg_pairs`, has the size of
    the last output, and each name in `statistics` is an attribute too. They are 0 before the first call, and if there
    are no pairs or triplets.
    """

    only_distance = False
    statistics: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, distance: Distance | None = None, collect_stats: bool | None = None) -> None:
        super().__init__(collect_stats=collect_stats)
        self.distance = checked(self, distance, self.get_default_distance(), only=self.only_distance)
        self.reset_statistics()

    def reset_statistics(self) -> None:
        """Set all statistics to 0 if `collect_stats` is True."""
        self.store(**dict.fromkeys((*COUNTS, *self.statistics), 0))

    def store(self, **values: Tensor | float) -> None:
        """Store statistics as attributes if `collect_stats` is True."""
        if self.collect_stats:
            for name, value in values.items():
                setattr(self, name, value.item() if isinstance(value, Tensor) else value)

    def get_default_distance(self) -> BaseDistance:
        """Return the distance that is used unless the user passes one."""
        return LpDistance()

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Any:
        """Select pairs or triplets.

        Args:
            embeddings: The embeddings of the anchors [B, d].
            labels: The class ids of the anchors [B].
            ref_emb: The embeddings of references [R, d]. By default, positives and negatives come from the batch.
            ref_labels: The class ids of the references [R].
        """
        check_rows("labels", labels, embeddings)
        labels = labels.to(embeddings.device)
        if ref_emb is None or ref_labels is None:
            ref_emb, ref_labels = embeddings, labels
        self.reset_statistics()
        output = self.mine(embeddings, labels, ref_emb, ref_labels.to(embeddings.device))
        if len(output) == 3:
            self.store(num_triplets=len(output[0]))
        else:
            self.store(num_pos_pairs=len(output[0]), num_neg_pairs=len(output[2]))
        return output

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        """Return triplets (anchors, positives, negatives), or pairs (anchors, positives, anchors, negatives)."""
        raise NotImplementedError


class Miner(BaseMiner):
    """Base class of miners that select pairs from a similarity matrix and masks. A subclass implements `select`.

    Anchors are indices into the batch. Positives and negatives are indices into the references `ref_emb` if they are
    given, otherwise into the batch.
    """

    @torch.no_grad()
    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Triplets | PairIndices:
        itself = ref_emb is embeddings and ref_labels is labels
        ids = comparable_labels(labels, ref_labels)
        ref_ids = None if itself else comparable_labels(ref_labels, labels)
        batch = make_batch(embeddings, ids, None if itself else ref_emb, ref_ids, None, None)
        with without_autocast(embeddings.device.type):
            masks = pair_masks(batch.labels, None if ref_labels is labels else batch.ref_labels)
            return self.select(Pairs(self.distance.similarity(batch.emb, batch.ref_emb), *masks), embeddings.shape[1])

    def select(self, pairs: Pairs, dim: int) -> Triplets | PairIndices:
        """Select pairs or triplets; `dim` is the dimension of the embeddings."""
        raise NotImplementedError


class HardnessMiner(Miner):
    """Base class of miners whose statistics are the distances of the easiest and the hardest pairs and triplets."""

    statistics = (
        *("easiest_triplet", "hardest_triplet", "easiest_pos_pair", "hardest_pos_pair"),
        *("easiest_neg_pair", "hardest_neg_pair"),
    )

    def store_extremes(self, positive: Tensor, negative: Tensor, *, triplets: bool) -> None:
        """Store the statistics of the similarities of positive and negative pairs.

        If `triplets` is True, the i-th positive and the i-th negative form a triplet. The value of a triplet is the
        distance of its positive minus that of its negative.
        """
        if not self.collect_stats:
            return
        sign = self.distance.sign
        if len(positive):
            self.store(easiest_pos_pair=sign * positive.max(), hardest_pos_pair=sign * positive.min())
        if len(negative):
            self.store(easiest_neg_pair=sign * negative.min(), hardest_neg_pair=sign * negative.max())
        if triplets and len(positive):
            gap = positive - negative
            self.store(easiest_triplet=sign * gap.max(), hardest_triplet=sign * gap.min())


def indices_of(pairs: Pairs) -> PairIndices:
    """Return the pairs in the masks of `pairs` as indices (anchors, positives, anchors, negatives)."""
    a1, p = pairs.same.nonzero(as_tuple=True)
    a2, n = pairs.diff.nonzero(as_tuple=True)
    return a1, p, a2, n
