"""The base class of losses over pairs and triplets: masks of the selected pairs, a distance, and a reducer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nearfar.compat.arguments import refuse
from nearfar.compat.distances import Distance, LpDistance
from nearfar.compat.distances import checked as checked_distance
from nearfar.compat.indices import Indices, SelectedPairs, select_pairs
from nearfar.compat.reducers import MeanReducer, Reducer
from nearfar.compat.reducers import checked as checked_reducer
from nearfar.losses.pair_loss import PairBatch, make_batch
from nearfar.ops.pairs import Pairs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


@dataclass(frozen=True, eq=False)
class ReducedPairs(Pairs):
    """Pairs of A anchors and R references whose means are computed by a reducer.

    With it, a formula of nearfar.losses gives the value of pytorch-metric-learning ("the peer").

    Args:
        reducer: The reducer.
        repeats: How often each pair counts [A, R]; None if each pair counts once.
        anchor_weights: Factors [A] of the terms of the anchors. They do not change the divisor of a mean.
        all_anchors: Whether anchors outside the mask count as zeros in a mean over anchors. Otherwise they are left
            out.
    """

    reducer: Reducer = field(default_factory=MeanReducer)
    repeats: Tensor | None = None
    anchor_weights: Tensor | None = None
    all_anchors: bool = True

    def mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = self.same | self.diff if mask is None else mask
        return self.reducer(values, mask if self.repeats is None else torch.where(mask, self.repeats, 0.0))

    def anchor_mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        counts = torch.ones_like(values, dtype=torch.bool)
        if mask is not None:
            values = torch.where(mask, values, 0.0)
            counts = counts if self.all_anchors else mask
        return self.reducer(values if self.anchor_weights is None else values * self.anchor_weights, counts)

    def repeated(self, scale: float) -> ReducedPairs:
        """Return the pairs with changed similarities of negatives that were selected more than once.

        A negative that was selected k times then counts k times in a sum of e^{sim / scale}.
        """
        if self.repeats is None:
            return self
        return replace(self, sim=torch.where(self.diff, self.sim + scale * self.repeats.clamp_min(1).log(), self.sim))


class PairBased(nn.Module):
    """Base class of losses over pairs and triplets.

    A subclass defines its default distance and reducer, and implements `cost`.
    """

    default_distance: Distance = LpDistance()
    default_reducer: Reducer = MeanReducer()
    only_distance = False  # whether only the default distance is supported
    reducer_kinds: tuple[type[Reducer], ...] | None = None
    takes_references = True
    needs_labels = False
    needs_both = False  # whether the loss is 0 if there are no positive pairs or no negative pairs
    few_is_none = True  # whether the loss is 0 with at most one positive and one negative pair, as in the peer

    def __init__(self, **options: Unpack[LossOptions]) -> None:
        super().__init__()
        refuse(self, options, but=("distance", "reducer"))
        distance, reducer = options.get("distance"), options.get("reducer")
        self.distance = checked_distance(self, distance, self.default_distance, only=self.only_distance)
        self.reducer = checked_reducer(self, reducer, self.default_reducer, self.reducer_kinds)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: Indices | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
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
        batch = make_batch(
            embeddings,
            _labels(labels, embeddings),
            ref_emb,
            None if ref_emb is None else _labels(ref_labels, ref_emb),
            None,
            None,
        )
        with torch.autocast(embeddings.device.type, enabled=False):
            selected = select_pairs(batch, labels, ref_labels, indices_tuple)
            any_of = all if self.needs_both else any
            if (selected.few and self.few_is_none) or not any_of((selected.same.any(), selected.diff.any())):
                return batch.emb.sum() * 0
            return self.value(batch, selected, indices_tuple)

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Tensor:
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
        )

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Tensor:
        """Compute the loss of the pairs."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"distance={self.distance!r}, reducer={self.reducer!r}"


def _labels(labels: Tensor | None, rows: Tensor) -> Tensor:
    """Return the labels, or zeros if they are None. In that case the indices of the miner define the pairs."""
    return torch.zeros(len(rows), dtype=torch.int64, device=rows.device) if labels is None else labels.to(rows.device)
