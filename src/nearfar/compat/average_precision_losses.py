"""Losses that approximate average precision. Each combines a distance, a formula of nearfar.losses and a reducer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nearfar import losses
from nearfar.compat.arguments import refusal, refuse_indices
from nearfar.compat.distances import BaseDistance, CosineSimilarity, LpDistance
from nearfar.compat.indices import Indices, SelectedPairs, miner_weights
from nearfar.compat.pair_based import PairBased, ReducedPairs, formula_of
from nearfar.compat.reducers import MeanReducer
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pnp import pnp
from nearfar.losses.smooth_ap import smooth_ap
from nearfar.ops.pairs import same_kind

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


class FastAPLoss(PairBased):
    """A loss with the formula of `nearfar.losses.FastAPLoss`, on all pairs.

    Samples are weighted by how often a miner selects them, as in pytorch-metric-learning.
    """

    def get_default_distance(self) -> BaseDistance:
        return LpDistance(power=2)

    only_distance = True
    takes_references = False
    needs_labels = True
    few_is_none = False

    def __init__(self, num_bins: int = 10, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.num_bins = int(num_bins)

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        formula = formula_of(losses.FastAPLoss, bins=self.num_bins)
        pairs = formula.compare(batch)  # all pairs, not only the selected ones
        weights = miner_weights(indices, batch.emb)
        reduced = ReducedPairs(
            pairs.sim,
            pairs.same,
            pairs.diff,
            reducer=self.reducer,
            anchor_weights=weights,
            all_anchors=False,
            embeddings=batch.emb,
            labels=batch.labels,
        )
        return formula.cost(reduced, batch)


class SmoothAPLoss(PairBased):
    """A loss with the formula of `nearfar.losses.SmoothAPLoss`, on all pairs.

    Unlike in that class, the anchor is one of its own positives, as in the released code of the paper. The values are
    correct for every batch. The values of pytorch-metric-learning are wrong unless the batch is sorted by class and has
    as many classes as samples per class. Samples are weighted by how often a miner selects them.
    """

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    only_distance = True
    reducer_kinds = (MeanReducer,)
    takes_references = False
    needs_labels = True
    few_is_none = False

    def __init__(
        self,
        temperature: float = 0.01,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = temperature

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        weights = miner_weights(indices, batch.emb)
        same = same_kind(batch.labels, batch.labels)
        sim = self.distance.similarity(batch.emb, None)
        value = smooth_ap(sim, same, ~same, weights, None, self.temperature)
        return value if weights is None else value * weights.mean()


class PNPLoss(PairBased):
    """A loss with the formula of `nearfar.losses.PNPLoss`, on all pairs.

    Unlike in that class, the anchor is one of its own positives, as in the released code of the paper.
    """

    VARIANTS = ("Ds", "Dq", "Iu", "Ib", "O")
    takes_references = False
    needs_labels = True
    few_is_none = False
    reducer_kinds = (MeanReducer,)

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(
        self,
        b: float = 2,
        alpha: float = 1,
        anneal: float = 0.01,
        variant: str = "O",
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        if not isinstance(self.distance, CosineSimilarity):
            raise refusal(self, "distance", self.distance, "use CosineSimilarity")
        if variant not in self.VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(map(repr, self.VARIANTS))}, got {variant!r}")
        self.b, self.alpha, self.anneal, self.variant = b, alpha, anneal, variant

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        refuse_indices(self, indices)
        sim = self.distance.similarity(batch.emb, None)
        own = torch.eye(len(sim), dtype=torch.bool, device=sim.device) & selected.same.any(1)[:, None]
        return pnp(sim, selected.same | own, selected.diff, None, None, self.variant, self.alpha, self.b, self.anneal)
