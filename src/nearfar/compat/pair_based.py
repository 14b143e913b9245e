"""The base class of losses over pairs and triplets. It combines selected pairs, a distance and a reducer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from nearfar.compat.distances import BaseDistance
from nearfar.compat.indices import (
    ConflictingPairsError,
    Indices,
    SelectedPairs,
    select_all,
    select_pairs,
    separate_references,
)
from nearfar.compat.metric_loss import BaseMetricLossFunction, comparable_labels
from nearfar.compat.reducer_base import BaseReducer, MaskedReducer
from nearfar.compat.reducers import AvgNonZeroReducer, MeanReducer, MultipleReducers, SumReducer, ThresholdReducer
from nearfar.losses.pair_batch import PairBatch, make_batch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.ops.precision import without_autocast


@dataclass(frozen=True, eq=False)
class ReducedPairs(Pairs):
    """Pairs of A anchors and R references. A reducer computes the means over these pairs.

    With these pairs, a formula from nearfar.losses gives the same value as pytorch-metric-learning.

    Args:
        reducer: The reducer.
        repeats: How often each pair counts [A, R]; None if each pair counts once.
        anchor_weights: Factors [A] that multiply the terms of the anchors. They do not change the divisor of a mean.
        all_anchors: Whether anchors that the mask of `anchor_mean` excludes count as zeros in that mean. If False, they
            are left out.
        embeddings: The embeddings of the anchors [A, d], which are passed to the reducer.
        labels: The labels of the anchors [A], which are passed to the reducer.
    """

    reducer: BaseReducer = field(default_factory=MeanReducer)
    repeats: Tensor | None = None
    anchor_weights: Tensor | None = None
    all_anchors: bool = True
    embeddings: Tensor | None = None
    labels: Tensor | None = None

    def mean(self, values: Tensor, mask: Tensor | None = None, *, name: str = "loss") -> Any:
        kind = "neg_pair" if mask is self.diff else "pos_pair"
        mask = self.same | self.diff if mask is None else mask
        counts = mask if self.repeats is None else torch.where(mask, self.repeats, 0.0)
        return reduce_matrix(self.reducer, values, counts, kind, self.embeddings, self.labels, name=name)

    def anchor_mean(self, values: Tensor, mask: Tensor | None = None) -> Any:
        counts = torch.ones_like(values, dtype=torch.bool)
        if mask is not None:
            values = torch.where(mask, values, 0.0)
            counts = counts if self.all_anchors else mask
        values = values if self.anchor_weights is None else values * self.anchor_weights
        return reduce_matrix(self.reducer, values, counts, "element", self.embeddings, self.labels)

    def repeated(self, scale: float) -> ReducedPairs:
        """Return pairs in which negatives that were selected more than once have larger similarities.

        A negative that was selected k times then counts k times in a sum of e^{sim / scale}.
        """
        if self.repeats is None:
            return self
        return replace(self, sim=torch.where(self.diff, self.sim + scale * self.repeats.clamp_min(1).log(), self.sim))


MASKED = (MeanReducer, SumReducer, ThresholdReducer, AvgNonZeroReducer)


def reduce_matrix(
    reducer: BaseReducer,
    values: Tensor,
    counts: Tensor,
    kind: str,
    embeddings: Tensor | None,
    labels: Tensor | None,
    *,
    name: str = "loss",
) -> Any:
    """Apply a reducer to the losses of pairs [A, R] of A anchors and R references, or to the losses of anchors [A].

    Args:
        reducer: The reducer.
        values: The losses.
        counts: Either the mask of the losses to include, or the number of times that each loss counts.
        kind: "element", "pos_pair" or "neg_pair".
        embeddings: The embeddings of the anchors.
        labels: The labels of the anchors.
        name: The name of the loss for MultipleReducers.
    """
    if isinstance(reducer, MultipleReducers):
        reducer = reducer.of(name)
    # Compare exact types, because a subclass may override the methods that `masked` replaces.
    if isinstance(reducer, MaskedReducer) and type(reducer) in MASKED:
        return reducer.masked(values, counts)
    index = torch.where(counts)
    if counts.dtype != torch.bool:
        each = counts[index].long()
        index = tuple(part.repeat_interleave(each) for part in index)
    entry = {"losses": values[index], "indices": index[0] if kind == "element" else index, "reduction_type": kind}
    return reducer({name: entry}, embeddings, labels)


LossT = TypeVar("LossT", bound=PairLoss)


@lru_cache(maxsize=256)
def formula_of(kind: type[LossT], **options: Any) -> LossT:
    """Return a stateless nearfar loss. It is cached: creating a loss takes as long as computing it on a small batch."""
    return kind(**options)


class PairBased(BaseMetricLossFunction):
    """Base class of losses over pairs and triplets.

    A subclass defines its default distance and reducer. It implements `cost`, or overrides `value` if it does not use
    exactly the selected pairs.
    """

    takes_references = True
    needs_labels = False
    needs_both = False  # whether the loss is 0 if there are no positive pairs or no negative pairs
    few_is_none = True  # whether the loss is 0 if there is at most one positive and at most one negative pair

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Indices | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        """Compute the loss.

        Args:
            embeddings: The embeddings [B, d].
            labels: The class ids [B]. If `indices_tuple` is given, only some losses require them.
            indices_tuple: The output of a miner. By default, all pairs are used.
            ref_emb: The embeddings of references [R, d], which are paired with `embeddings`. By default, the samples of
                the batch are paired with each other.
            ref_labels: The class ids of the references [R].
        """
        if labels is None and (indices_tuple is None or self.needs_labels):
            raise ValueError(f"{type(self).__name__} requires labels, got None")
        if ref_emb is not None and ref_labels is None and (indices_tuple is None or self.needs_labels):
            raise ValueError(f"{type(self).__name__}: ref_emb was given without ref_labels: pass both or neither")
        if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
            ref_emb, ref_labels = None, labels
        elif not self.takes_references:
            raise ValueError(
                f"{type(self).__name__}: ref_emb was given, but this loss does not support references: remove it"
            )
        batch = self.make_batch(embeddings, labels, ref_emb, ref_labels)
        with without_autocast(embeddings.device.type):
            try:
                selected = select_pairs(batch, labels, ref_labels, indices_tuple)
            except ConflictingPairsError:
                if indices_tuple is None or self.needs_labels or not self.takes_references:
                    raise
                batch, indices_tuple = separate_references(batch, indices_tuple)
                selected = select_pairs(batch, labels, None, indices_tuple)
            return self.value_or_zero(batch, selected, indices_tuple)

    def against_queue(
        self, embeddings: Tensor, labels: Tensor, rows: Tensor, row_labels: Tensor, own: Tensor | None
    ) -> Any:
        """Compute the loss over all pairs of a batch sample and a queue entry, without listing the pairs.

        Args:
            embeddings: The embeddings of the batch [B, d].
            labels: The class ids of the batch [B].
            rows: The embeddings of the queue [R, d].
            row_labels: The class ids of the queue [R].
            own: The position of each sample of the batch in the queue [B], or None if the queue does not contain the
                batch. A sample is not its own positive.
        """
        if not self.distance.normalize_embeddings:
            rows = rows.clone()  # autograd stores this tensor, but the next batch changes the queue in place
        batch = self.make_batch(embeddings, labels, rows, row_labels)
        with without_autocast(embeddings.device.type):
            same, diff = pair_masks(batch.labels, batch.ref_labels)
            if own is not None:
                same.scatter_(1, own[:, None], False)
            return self.value_or_zero(batch, select_all(same, diff), None)

    def value_or_zero(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        """Compute the loss plus the regularizer. If the pairs that the loss needs are missing, the loss is 0."""
        any_of = all if self.needs_both else any
        # on large masks, counting is faster than `any`
        counts = (torch.count_nonzero(mask) for mask in (selected.same, selected.diff))
        if (selected.few and self.few_is_none) or not any_of(counts):
            return self.regularize(batch.emb.sum() * 0, batch.emb)
        return self.regularize(self.value(batch, selected, indices), batch.emb)

    def make_batch(
        self, embeddings: Tensor, labels: Tensor | None, ref_emb: Tensor | None, ref_labels: Tensor | None
    ) -> PairBatch:
        """Check the inputs, convert half precision to float32, and return the batch."""
        ids = _labels(labels, ref_labels, embeddings)
        ref_ids = None if ref_emb is None else _labels(ref_labels, labels, ref_emb)
        if type(self.distance).check_shapes is not BaseDistance.check_shapes:
            return PairBatch(embeddings, ids, None, ref_emb, ref_ids)  # a user-defined distance checks the shapes
        return make_batch(embeddings, ids, ref_emb, ref_ids, None, None)

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        """Compute the loss of the selected pairs."""
        return self.cost(self.pairs(batch, selected), batch)

    def pairs(self, batch: PairBatch, selected: SelectedPairs) -> ReducedPairs:
        """Create the pairs of a batch with the distance and the reducer of this loss."""
        return ReducedPairs(
            self.distance.similarity(batch.emb, batch.ref_emb),
            selected.same,
            selected.diff,
            symmetric=batch.ref_emb is None,
            reducer=self.reducer,
            repeats=selected.repeats,
            embeddings=batch.emb,
            labels=batch.labels,
        )

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        """Compute the loss of the pairs."""
        raise NotImplementedError


def _labels(labels: Tensor | None, others: Tensor | None, rows: Tensor) -> Tensor:
    """Return the labels as integers. If they are None, return zeros: the indices of the miner then define the pairs."""
    if labels is None:
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    return comparable_labels(labels, others).to(rows.device)
