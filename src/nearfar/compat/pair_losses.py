"""The losses over pairs. Each combines a distance, a formula of nearfar.losses and a reducer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nearfar import losses
from nearfar.compat.arguments import refusal
from nearfar.compat.distances import BaseDistance, CosineSimilarity, DotProductSimilarity, SNRDistance
from nearfar.compat.indices import Indices, SelectedPairs, as_pairs
from nearfar.compat.pair_based import PairBased, ReducedPairs, formula_of
from nearfar.compat.reducer_base import BaseReducer
from nearfar.compat.reducers import AvgNonZeroReducer, MeanReducer, MultipleReducers, SumReducer
from nearfar.losses.contrastive import hinges, nonzero_hinges
from nearfar.losses.lifted import lifted_mean
from nearfar.losses.pair_batch import PairBatch
from nearfar.ops.pairs import Pairs, same_kind

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import LossOptions


def adds_nonzero_means(reducer: BaseReducer, names: list[str]) -> bool:
    """Return whether a reducer adds the means of the non-zero losses in each of the named entries, and nothing else."""
    if type(reducer) is not MultipleReducers or reducer.collect_stats:
        return False
    parts = [reducer.of(name) for name in names]
    return all(type(part) is AvgNonZeroReducer and not part.collect_stats for part in parts)


class ContrastiveLoss(PairBased):
    """A loss with the hinge terms of `nearfar.losses.ContrastiveLoss`, for any distance.

    The reducer is applied to positive and negative pairs separately.
    """

    def get_default_reducer(self) -> BaseReducer:
        return AvgNonZeroReducer()

    def __init__(
        self,
        pos_margin: float = 0,
        neg_margin: float = 1,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.pos_margin, self.neg_margin = pos_margin, neg_margin

    def _sub_loss_names(self) -> list[str]:
        return ["pos_loss", "neg_loss"]

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        pos_margin, neg_margin = self.distance.sign * self.pos_margin, self.distance.sign * self.neg_margin
        if pairs.repeats is None and adds_nonzero_means(self.reducer, self.sub_loss_names()):
            return nonzero_hinges(pairs, pos_margin, neg_margin)
        losses = hinges(pairs.sim, pairs.same, pos_margin, neg_margin)
        pos = pairs.mean(losses, pairs.same, name="pos_loss")
        neg = pairs.mean(losses, pairs.diff, name="neg_loss")
        return pos | neg if isinstance(pos, dict) else pos + neg


class SignalToNoiseRatioContrastiveLoss(ContrastiveLoss):
    """ContrastiveLoss with SNRDistance."""

    def get_default_distance(self) -> BaseDistance:
        return SNRDistance()

    def __init__(self, *, pos_margin: float = 0, neg_margin: float = 1, **options: Unpack[LossOptions]) -> None:
        super().__init__(pos_margin, neg_margin, **options)
        if not isinstance(self.distance, SNRDistance):
            raise refusal(self, "distance", self.distance, "use SNRDistance")


class MultiSimilarityLoss(PairBased):
    """A loss with the formula of `nearfar.losses.MultiSimilarityLoss`, on mined pairs or on all pairs."""

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def __init__(
        self,
        alpha: float = 2,
        beta: float = 50,
        base: float = 0.5,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.alpha, self.beta, self.base = alpha, beta, base

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        threshold = self.distance.sign * self.base
        formula = formula_of(
            losses.MultiSimilarityLoss, alpha=self.alpha, beta=self.beta, threshold=threshold, epsilon=None
        )
        return formula.cost(pairs, batch)


class LiftedStructureLoss(PairBased):
    """A loss with the formula of `nearfar.losses.LiftedStructureLoss` with form="song".

    If neither sample of a positive pair with distance D has negatives, the pair adds 1/2 [D - pos_margin]_+^2, as in
    pytorch-metric-learning. If `ref_emb` is given, pytorch-metric-learning uses the negatives of the j-th anchor for
    the j-th reference, although the two are different samples. This class does the same, so the values are equal.
    """

    reducer_kinds = (MeanReducer, SumReducer)
    needs_both = True

    def __init__(
        self,
        neg_margin: float = 1,
        pos_margin: float = 0,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.neg_margin, self.pos_margin = neg_margin, pos_margin

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        sign = self.distance.sign
        has = pairs.diff.any(1)
        repeated = pairs.repeated(1.0)
        rows = repeated.log_sum_exp(repeated.sim + sign * (self.pos_margin - self.neg_margin), pairs.diff)
        if batch.ref_emb is None:
            columns, has_column = rows, has
        else:
            anchors, refs = pairs.sim.shape
            padded = torch.cat([rows, rows.new_full((max(refs - anchors, 0),), -torch.inf)])[:refs]
            own = torch.eye(anchors, refs, dtype=torch.bool, device=rows.device)
            columns = padded.expand(anchors, refs).masked_fill(own, -torch.inf)
            has_column = padded > -torch.inf
        value = lifted_mean(pairs, rows, columns)
        lonely = hinges(pairs.sim, pairs.same, sign * self.pos_margin, 0.0).square() / 2
        return value + pairs.mean(torch.where(has[:, None] | has_column, 0.0, lonely), pairs.same)


class NTXentLoss(PairBased):
    """A loss with the formula of `nearfar.losses.NTXentLoss`, for any distance and any reducer."""

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    needs_both = True

    def __init__(
        self,
        temperature: float = 0.07,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = temperature

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        return formula_of(losses.NTXentLoss, temperature=self.temperature).cost(pairs.repeated(self.temperature), batch)


class SupConLoss(PairBased):
    """A loss with the formula of `nearfar.losses.SupConLoss`, for any distance and any reducer."""

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def get_default_reducer(self) -> BaseReducer:
        return AvgNonZeroReducer()

    needs_both = True

    def __init__(
        self,
        temperature: float = 0.1,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = temperature

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        return formula_of(losses.SupConLoss, temperature=self.temperature).cost(pairs, batch)


class CircleLoss(PairBased):
    """A loss with the formula of `nearfar.losses.CircleLoss`, for any reducer."""

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def get_default_reducer(self) -> BaseReducer:
        return AvgNonZeroReducer()

    only_distance = True

    def __init__(
        self,
        m: float = 0.4,
        gamma: float = 80,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(**options)
        self.m, self.gamma = m, gamma

    def cost(self, pairs: ReducedPairs, batch: PairBatch) -> Any:
        return formula_of(losses.CircleLoss, m=self.m, gamma=self.gamma).cost(pairs, batch)


class NPairsLoss(PairBased):
    """A loss with the formula of `nearfar.losses.NPairsLoss`, on the first positive pair of each class.

    All other samples are ignored, as in pytorch-metric-learning.
    """

    def get_default_distance(self) -> BaseDistance:
        return DotProductSimilarity()

    takes_references = False
    needs_labels = True
    few_is_none = False

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        a, p = selected.same.nonzero(as_tuple=True) if indices is None else as_pairs(indices)[:2]
        if len(a) == 0:
            return batch.emb.sum() * 0
        kinds, kind = torch.unique(batch.labels[a], return_inverse=True)
        places = torch.arange(len(a), device=a.device)
        first = places.new_full((len(kinds),), len(a)).scatter_reduce(0, kind, places, "amin")
        anchors, positives = (batch.select(each[first]) for each in (a, p))
        same = torch.eye(len(first), dtype=torch.bool, device=a.device)
        sim = self.distance.similarity(anchors.emb, positives.emb)
        pairs = ReducedPairs(sim, same, ~same, reducer=self.reducer, embeddings=anchors.emb, labels=anchors.labels)
        return formula_of(losses.NPairsLoss, l2_reg=0).cost(pairs, anchors.against(positives))


class AngularLoss(PairBased):
    """A loss with the formula of `nearfar.losses.AngularLoss`, on the selected positive pairs and all negatives.

    The negatives are normalized, as in the paper. pytorch-metric-learning does not normalize them, so its values grow
    with the norms of the embeddings. For unit vectors, the values are equal.
    """

    only_distance = True
    reducer_kinds = (MeanReducer,)
    needs_labels = True
    few_is_none = False
    needs_both = True

    def __init__(self, alpha: float = 40, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        self.alpha = alpha

    def value(self, batch: PairBatch, selected: SelectedPairs, indices: Indices | None) -> Any:
        if selected.repeats is not None and bool((torch.where(selected.same, selected.repeats, 0.0) > 1).any()):
            raise ValueError(
                "AngularLoss: indices_tuple names a positive pair more than once, but a pair can only count once: "
                "pass pairs without repetition, or use pytorch_metric_learning"
            )
        formula = formula_of(losses.AngularLoss, angle=self.alpha)
        refs = batch.labels if batch.ref_labels is None else batch.ref_labels
        sim = formula.similarity(batch.emb, batch.ref_emb)
        return formula.cost(Pairs(sim, selected.same, ~same_kind(batch.labels, refs)), batch)
