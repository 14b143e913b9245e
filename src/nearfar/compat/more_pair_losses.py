"""More losses over pairs: each combines a distance, a formula from nearfar.losses and a reducer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from nearfar import losses
from nearfar.compat.arguments import InvalidInputError, refusal, refuse_indices
from nearfar.compat.distances import BaseDistance, CosineSimilarity, LpDistance
from nearfar.compat.indices import Indices, SelectedPairs, miner_weights
from nearfar.compat.pair_based import PairBased, ReducedPairs, formula_of
from nearfar.compat.reducers import MeanReducer
from nearfar.losses.generalized_lifted import anchor_costs
from nearfar.losses.histogram import overlap
from nearfar.losses.nca import nca
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.ranked_list import ranked_list_terms
from nearfar.losses.tuplet_margin import tuplet_costs
from nearfar.ops.pairs import pair_masks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


class NCALoss(PairBased):
    """A loss with the formula of `nearfar.losses.NCALoss`, on all pairs.

    Anchors are weighted by how often a miner selects them, as in pytorch-metric-learning.
    """

    needs_labels = True
    few_is_none = False

    def get_default_distance(self) -> BaseDistance:
        return LpDistance(power=2)

    def __init__(self, softmax_scale: float = 1, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.softmax_scale = softmax_scale

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        is_every_pair = indices is None and batch.ref_emb is None
        every = selected if is_every_pair else SelectedPairs(*pair_masks(batch.labels, batch.ref_labels), few=False)
        weights = miner_weights(indices, batch.emb, anchors=batch.ref_emb is not None)
        pairs = ReducedPairs(
            self.distance.similarity(batch.emb, batch.ref_emb),
            every.same,
            every.diff,
            reducer=self.reducer,
            anchor_weights=weights,
            all_anchors=False,
            embeddings=batch.emb,
            labels=batch.labels,
        )
        return nca(pairs, self.softmax_scale)


class TupletMarginLoss(PairBased):
    """A loss with the formula of `nearfar.losses.TupletMarginLoss`, for any reducer. `margin` is in degrees.

    The gradient is finite at cosines of 1 and -1; in pytorch-metric-learning it is not. If `collect_stats` is True, the
    attributes `avg_pos_angle` and `avg_neg_angle` have the mean angles in degrees of the positive and the negative
    pairs of the last call.
    """

    needs_both = True

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(self, margin: float = 5.73, scale: float = 64, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        if not isinstance(self.distance, CosineSimilarity):
            raise refusal(self, "distance", self.distance, "use CosineSimilarity")
        self.margin, self.scale = margin, scale
        if self.collect_stats:
            self.avg_pos_angle = self.avg_neg_angle = 0.0

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        if self.collect_stats:
            angles = pairs.sim.detach().clamp(-1, 1).acos().rad2deg()
            self.avg_pos_angle, self.avg_neg_angle = (float(angles[mask].mean()) for mask in (pairs.same, pairs.diff))
        repeated = pairs.repeated(1 / self.scale)
        return pairs.mean(tuplet_costs(repeated, self.margin, self.scale), pairs.same)


class IntraPairVarianceLoss(PairBased):
    """A loss with the formula of `nearfar.losses.IntraPairVarianceLoss`, for any distance.

    The reducer is applied to positive and negative pairs separately.
    """

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def _sub_loss_names(self) -> list[str]:
        return ["pos_loss", "neg_loss"]

    def __init__(self, pos_eps: float = 0.01, neg_eps: float = 0.01, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.pos_eps, self.neg_eps = pos_eps, neg_eps

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        sign = self.distance.sign
        plain = ReducedPairs(pairs.sim, pairs.same, pairs.diff, repeats=pairs.repeats)
        mean_pos, mean_neg = plain.mean(pairs.sim, pairs.same), plain.mean(pairs.sim, pairs.diff)
        pos = ((1 - sign * self.pos_eps) * mean_pos - pairs.sim).relu().square()
        neg = (pairs.sim - (1 + sign * self.neg_eps) * mean_neg).relu().square()
        one = pairs.mean(pos, pairs.same, name="pos_loss")
        other = pairs.mean(neg, pairs.diff, name="neg_loss")
        return one | other if isinstance(one, dict) else one + other


class GeneralizedLiftedStructureLoss(PairBased):
    """A loss with the formula of `nearfar.losses.GeneralizedLiftedStructureLoss`, for any distance and any reducer."""

    def __init__(self, neg_margin: float = 1, pos_margin: float = 0, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.neg_margin, self.pos_margin = neg_margin, pos_margin

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        sign = -self.distance.sign
        return pairs.anchor_mean(anchor_costs(pairs, sign * self.pos_margin, sign * self.neg_margin))


class RankedListLoss(PairBased):
    """A loss with the formula of `nearfar.losses.RankedListLoss` on all pairs.

    The loss divides by sums of weights. As in pytorch-metric-learning, 1e-5 times the batch size is added to each sum.
    """

    takes_references = False
    needs_labels = True
    few_is_none = False

    def __init__(
        self,
        margin: float,
        Tn: float,
        imbalance: float = 0.5,
        alpha: float | None = None,
        Tp: float = 0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        if not 0 <= imbalance <= 1:
            raise InvalidInputError(f"imbalance must be between 0 and 1, got {imbalance}")
        self.margin, self.imbalance, self.Tp, self.Tn = margin, imbalance, Tp, Tn
        self.alpha = 1 + margin / 2 if alpha is None else alpha

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        refuse_indices(self, indices)
        pairs = self.pairs(batch, selected)
        slack = 1e-5 * len(batch.emb)
        # pytorch-metric-learning applies the formula for distances unchanged to the values of a similarity.
        apart = replace(pairs, sim=-self.distance.sign * pairs.sim) if self.distance.is_inverted else pairs
        terms = ranked_list_terms(apart, self.margin, self.alpha, self.Tn, self.Tp, self.imbalance, slack)
        return pairs.anchor_mean(terms)


class HistogramLoss(PairBased):
    """A loss with the formula of `nearfar.losses.HistogramLoss`, on the pairs in mined triplets or in all triplets.

    Each pair counts once, even if it is selected more than once or as both (i, j) and (j, i).
    """

    takes_references = False
    few_is_none = False
    reducer_kinds = (MeanReducer,)

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(self, n_bins: int | None = None, delta: float | None = None, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        if delta is not None and n_bins is not None and delta != 2 / n_bins:
            raise InvalidInputError(f"delta must be 2 / n_bins = {2 / n_bins}, got {delta}: pass only one of the two")
        self.delta = 2 / (n_bins or 100) if delta is None else delta

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        same, diff = selected.same, selected.diff
        if indices is None or len(indices) == 4:  # only anchors with both positives and negatives form triplets
            both = (same.any(1) & diff.any(1))[:, None]
            same, diff = same & both, diff & both
        pos, neg = ((mask | mask.T).triu(1).to(batch.emb.dtype) for mask in (same, diff))
        return overlap(self.distance.similarity(batch.emb, None), pos, neg, round(2 / self.delta))


class ThresholdConsistentMarginLoss(PairBased):
    """A loss with the formula of `nearfar.losses.ThresholdConsistentMarginLoss`, on mined pairs or on all pairs."""

    few_is_none = False
    reducer_kinds = (MeanReducer,)

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(
        self,
        lambda_plus: float = 1.0,
        lambda_minus: float = 1.0,
        margin_plus: float = 0.9,
        margin_minus: float = 0.5,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        if not isinstance(self.distance, CosineSimilarity):
            raise refusal(self, "distance", self.distance, "use CosineSimilarity")
        self.lambda_plus, self.lambda_minus = lambda_plus, lambda_minus
        self.margin_plus, self.margin_minus = margin_plus, margin_minus

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        formula = formula_of(
            losses.ThresholdConsistentMarginLoss,
            pos_margin=self.margin_plus,
            neg_margin=self.margin_minus,
            weight_pos=self.lambda_plus,
            weight_neg=self.lambda_minus,
        )
        return formula.cost(pairs, batch)


class InstanceLoss(PairBased):
    """Cross-entropy over gamma times the cosines of each sample with all samples of the batch, itself included.

    The targets are those of pytorch-metric-learning: if the label of a sample is the r-th of the sorted distinct labels
    of the batch, its target is the r-th sample of the batch. Therefore, every sample is its own target only if all
    labels differ and are sorted. The paper (Zheng et al., ACM TOMM 2020, arXiv 1711.05535) instead uses a classifier
    with one class per image. For that loss, use `nearfar.losses.NormalizedSoftmaxLoss`.
    """

    takes_references = False
    needs_labels = True
    few_is_none = False
    only_distance = True

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(self, gamma: float = 64, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.gamma = gamma

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        refuse_indices(self, indices)
        targets = torch.unique(batch.labels, return_inverse=True)[1]
        logits = self.distance.similarity(batch.emb, None) * self.gamma
        terms = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        return self.pairs(batch, selected).anchor_mean(terms)
