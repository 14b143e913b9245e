"""Lifted structure loss: compare each positive pair with all negatives of both of its samples."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch, pair_weights, with_weights
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import cosine_matrix, distance_matrix, negative_distance_matrix
from nearfar.ops.pairs import Pairs, log_sum_exp, pair_masks
from nearfar.validation import check_choice, check_positive


@register("lifted")
class LiftedStructureLoss(PairLoss):
    """Lifted structure loss in three forms.

    P_i and N_i are the positives and negatives of sample i, D is the Euclidean distance and S the cosine of a pair.

    - form="song" (Song et al., CVPR 2016): the mean over positive pairs (i, j) of 1/2 [J_ij]_+^2 with
      J_ij = log( sum_{k in N_i} e^{alpha - D_ik} + sum_{l in N_j} e^{alpha - D_jl} ) + D_ij. By default, the
      embeddings are not normalized.
    - form="anchor" (DRO, arXiv 1912.11194, Eqs. 3 and 8): the sum over anchors i of
      [ log sum_{P_i} e^{threshold - S} + log sum_{N_i} e^{S - threshold} ]_+. An anchor without positives or without
      negatives contributes 0.
    - form="scaled" (the GitHub repository bnu-wangxun/Deep_Metric): the mean over all anchors i of
      (2/scale_pos) log sum_{P_i} e^{-scale_pos S} + (2/scale_neg) log sum_{N_i} e^{scale_neg S}. A logarithm is
      replaced by 0 if its sum is empty.

    A batch from the PROFS sampler (`nearfar.samplers.Profs`) has class representatives and other samples, called
    examples. The positive pairs of form "song" are then (representative i, example j). N_i are all samples of other
    classes, and N_j are the representatives of other classes, so no term compares two examples (PROFS,
    arXiv 1907.07585, section 4).

    Args:
        form: "song", "anchor" or "scaled".
        alpha: Margin of form "song". The default is from Song et al.
        normalize: Whether to scale embeddings to unit length in form "song".
        threshold: Threshold of form "anchor". It cancels in the formula, so it does not change the value.
        scale_pos: Scale of the positives in form "scaled". The default is from the repository.
        scale_neg: Scale of the negatives in form "scaled". The default is from the repository.

    >>> LiftedStructureLoss()(torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([0, 0, 1]))  # 1/2 log(2)^2
    tensor(0.2402)
    """

    def __init__(
        self,
        *,
        form: str = "song",
        alpha: float = 1.0,
        normalize: bool = False,
        threshold: float = 0.5,
        scale_pos: float = 2.0,
        scale_neg: float = 40.0,
    ) -> None:
        super().__init__()
        self.form = check_choice("form", form, ("song", "anchor", "scaled"))
        self.alpha, self.normalize, self.threshold = alpha, normalize, threshold
        self.scale_pos = check_positive("scale_pos", scale_pos)
        self.scale_neg = check_positive("scale_neg", scale_neg)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        if self.form != "song":
            return cosine_matrix(x, y)
        return negative_distance_matrix(x, y) if self.normalize else -distance_matrix(x, y)

    def arrange(self, batch: PairBatch, representatives: int | None) -> PairBatch:
        if representatives is None or self.form != "song":
            return super().arrange(batch, representatives)
        return batch.select(slice(representatives)).against(batch, representatives=True)

    def compare(self, batch: PairBatch) -> Pairs:
        if not (batch.representatives and self.form == "song"):
            return super().compare(batch)
        assert batch.ref_emb is not None
        n = len(batch.emb)
        same, diff = pair_masks(batch.labels, batch.ref_labels)
        same[:, :n] = False
        diff[:, :n].fill_diagonal_(False)
        return with_weights(Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff), *pair_weights(batch))

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if self.form == "song":
            return song(pairs, self.alpha)
        if self.form == "anchor":
            pos = pairs.log_sum_exp(self.threshold - pairs.sim, pairs.same)
            neg = pairs.log_sum_exp(pairs.sim - self.threshold, pairs.diff)
            costs = (pos + neg).relu()  # pos or neg is -inf if the anchor has no such pairs, and the cost is then 0
            return (costs if pairs.weights is None else costs * pairs.weights).sum()
        pos = or_zero(pairs.log_sum_exp(-self.scale_pos * pairs.sim, pairs.same))
        neg = or_zero(pairs.log_sum_exp(self.scale_neg * pairs.sim, pairs.diff))
        return pairs.anchor_mean(2 / self.scale_pos * pos + 2 / self.scale_neg * neg)


def song(pairs: Pairs, alpha: float) -> Tensor:
    """Compute `LiftedStructureLoss` with form="song" and margin alpha. `pairs.sim` holds the negated distances -D."""
    z = pairs.sim + alpha
    rows = log_sum_exp(z, pairs.diff, weights=pairs.ref_weights)
    columns = rows if pairs.symmetric else log_sum_exp(z.T, pairs.diff.T, weights=pairs.weights)
    return lifted_mean(pairs, rows, columns)


def lifted_mean(pairs: Pairs, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute the mean over positive pairs (i, j) of 1/2 [log(e^rows_i + e^columns_j) + D_ij]_+^2.

    i is an anchor, j is a reference (a sample it is compared with), and D_ij is their distance. `rows` and `columns`
    are log-sum-exps over negatives. `rows` has one value per anchor. `columns` has one value per reference, or one per
    pair if it depends on the anchor.
    """
    floor = -1e30  # a finite stand-in for log(0), because logaddexp(-inf, -inf) has a NaN gradient
    j = torch.logaddexp(rows.clamp_min(floor)[:, None], columns.clamp_min(floor)) - pairs.sim
    return pairs.mean(0.5 * j.relu().square(), pairs.same)


def or_zero(x: Tensor) -> Tensor:
    """Replace -inf, the log-sum-exp of an empty set, by 0."""
    return torch.where(x > -torch.inf, x, 0.0)
