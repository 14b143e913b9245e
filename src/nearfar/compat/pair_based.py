"""What losses over pairs and triplets share: masks of what was chosen, a distance, and means that are a reducer's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nearfar.compat.arguments import refuse
from nearfar.compat.distances import Distance, LpDistance
from nearfar.compat.distances import checked as checked_distance
from nearfar.compat.indices import Chosen, Indices, chosen
from nearfar.compat.reducers import MeanReducer, Reducer
from nearfar.compat.reducers import checked as checked_reducer
from nearfar.losses.pair_loss import PairBatch, make_batch
from nearfar.ops.pairs import Pairs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


@dataclass(frozen=True, eq=False)
class ReducedPairs(Pairs):
    """Pairs whose means are a reducer's, so that a formula of nearfar.losses ends as it does there.

    repeats: how often each pair counts [A, R]; None: once. anchor_weights: of the anchors' terms, beside the mean.
    all_anchors: anchors that the formula leaves out count as zeros.
    """

    reducer: Reducer = field(default_factory=MeanReducer)
    repeats: Tensor | None = None
    anchor_weights: Tensor | None = None
    all_anchors: bool = True

    def mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = self.same | self.diff if mask is None else mask
        return self.reducer(values, mask if self.repeats is None else torch.where(mask, self.repeats, 0.0))

    def anchor_mean(self, values: Tensor, which: Tensor | None = None) -> Tensor:
        each = torch.ones_like(values, dtype=torch.bool)
        if which is not None:
            values = torch.where(which, values, 0.0)
            each = each if self.all_anchors else which
        return self.reducer(values if self.anchor_weights is None else values * self.anchor_weights, each)

    def repeated(self, scale: float) -> ReducedPairs:
        """With a negative that was named k times as e^{sim / scale} k times in a sum of exponentials."""
        if self.repeats is None:
            return self
        return replace(self, sim=torch.where(self.diff, self.sim + scale * self.repeats.clamp_min(1).log(), self.sim))


class PairBased(nn.Module):
    """`loss(embeddings, labels=None, indices_tuple=None, ref_emb=None, ref_labels=None)`; `indices_tuple` of a miner.

    A subclass names its default distance and reducer, and says what the pairs cost.
    """

    default_distance: Distance = LpDistance()
    default_reducer: Reducer = MeanReducer()
    only_distance = False  # the formula is defined for the default distance alone
    reducer_kinds: tuple[type[Reducer], ...] | None = None
    takes_references = True
    needs_labels = False
    needs_both = False  # without positive or without negative pairs there is no loss
    few_is_none = True  # nor with at most one of each, as there

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
        if labels is None and (indices_tuple is None or self.needs_labels):
            raise ValueError(f"{type(self).__name__}: labels is None: pass the labels")
        if ref_emb is not None and ref_labels is None and (indices_tuple is None or self.needs_labels):
            raise ValueError(f"{type(self).__name__}: ref_emb was given without ref_labels: pass both or neither")
        if ref_emb is None or (ref_emb is embeddings and ref_labels is labels):
            ref_emb, ref_labels = None, labels
        elif not self.takes_references:
            raise ValueError(f"{type(self).__name__}: ref_emb was given: leave it out, the loss is about one batch")
        batch = make_batch(
            embeddings,
            _labels(labels, embeddings),
            ref_emb,
            None if ref_emb is None else _labels(ref_labels, ref_emb),
            None,
            None,
        )
        with torch.autocast(embeddings.device.type, enabled=False):
            found = chosen(batch, labels, ref_labels, indices_tuple)
            any_of = all if self.needs_both else any
            if (found.few and self.few_is_none) or not any_of((found.same.any(), found.diff.any())):
                return batch.emb.sum() * 0
            return self.value(batch, found, indices_tuple)

    def value(self, batch: PairBatch, found: Chosen, indices: Indices | None) -> Tensor:
        """The loss of what was chosen."""
        return self.cost(self.pairs(batch, found), batch)

    def pairs(self, batch: PairBatch, found: Chosen) -> ReducedPairs:
        """The pairs of a batch under this distance, ending in this reducer."""
        return ReducedPairs(
            self.distance.similarity(batch.emb, batch.ref_emb),
            found.same,
            found.diff,
            symmetric=batch.ref_emb is None,
            reducer=self.reducer,
            repeats=found.repeats,
        )

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Tensor:
        """What the pairs cost."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"distance={self.distance!r}, reducer={self.reducer!r}"


def _labels(labels: Tensor | None, rows: Tensor) -> Tensor:
    """Without labels the miner's indices say everything."""
    return torch.zeros(len(rows), dtype=torch.int64, device=rows.device) if labels is None else labels.to(rows.device)
