"""Hierarchical average precision (HAPPIER): confusing related classes costs less than confusing unrelated ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.host_reads import should_check_values
from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch, pair_weights, with_weights
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.custom_grad import analytic
from nearfar.ops.pairs import Pairs, same_kind
from nearfar.ops.triplets import anchor_shares, positive_table
from nearfar.validation import check_not_negative, check_positive


@register("hap")
class HAPLoss(PairLoss):
    """H-AP loss of HAPPIER (Ramzi et al., ECCV 2022, arXiv 2207.04873), on cosines S.

    A class has L levels: the class itself and its ancestors. A sample that shares l > 0 levels with anchor i is one of
    its positives, with relevance rel = (l / L)^alpha / n_l, where n_l is the number of samples that share l levels with
    i. The loss is the mean over anchors with positives of 1 - H-AP, where

        H-AP = sum_k ( Hrank(k) / rank(k) ) / sum_k rel(k)    over positives k
        Hrank(k) = rel(k) + sum_j min(rel(k), rel(j))         over positives j != k with S_ij >= S_ik
        rank(k)  = 1 + sum_j R(S_ij - S_ik)                   over all samples j except i and k

    If j shares at least as many levels with the anchor as k does, R is the step function: 1 for x >= 0, else 0.
    Otherwise, R is

        R(x) = sigmoid(x / tau) for x <= 0, start + sigmoid(x / tau) for 0 < x <= delta, else offset + rho (x - delta)

    Hrank and the step function have no gradient. If j shares fewer levels with the anchor than k does, minimizing the
    loss lowers S_ij relative to S_ik, so that j is ranked after k.

    The formula of R and the defaults are those of the released code. Its option with_hrank is not implemented. Unlike
    in the released code, an anchor is not part of its own ranking. The released code trains with 0.9 times this loss
    plus 0.1 times `normalized-softmax`.

    With one level, H-AP is the average precision. With multi-hot labels, L is the number of labels of the anchor, and l
    is the number of labels that a sample shares with it.

    If samples have weights, the weight of a sample j multiplies its terms in Hrank, rank and n_l. The weight of a
    positive k multiplies its terms in the sums over k. The leading 1 in rank(k) has no weight.

    The time is O(B^2 P) for a batch of B samples and P positives per anchor.

    Args:
        levels: The ids of the ancestors of each class, from the parent to the root. For example, `levels[c][0]` is the
            id of the parent of class c. Within a level, ancestors that have different parents must have different ids.
            None if classes have no ancestors.
        alpha: Exponent of the relevance. The default is from the released code.
        tau: Temperature of the sigmoid.
        rho: Slope of R above delta.
        offset: The constant in the linear part of R, which is the limit of R as x decreases to delta.
        delta: The x above which R is linear.
        start: The number added to the sigmoid for 0 < x <= delta.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.8, 0.6], [-1.0, 0.0]])
    >>> loss = HAPLoss(levels=[[0], [0], [1]])  # classes 0 and 1 have the same parent
    >>> loss(x, torch.tensor([0, 0, 1, 2])) < 1e-6  # all rankings are correct
    tensor(True)
    >>> loss(x, torch.tensor([0, 1, 0, 2])) > 0.1  # for sample 0, class 1 is ranked before class 0
    tensor(True)
    """

    levels: Tensor | None
    needs_grades = True  # the relevances are computed from grades

    def __init__(
        self,
        *,
        levels: Sequence[Sequence[int]] | None = None,
        alpha: float = 1.0,
        tau: float = 0.01,
        rho: float = 100.0,
        offset: float = 1.44,
        delta: float = 0.05,
        start: float = 0.5,
    ) -> None:
        super().__init__()
        self.levels_option = levels
        if levels is not None and len({len(ancestors) for ancestors in levels}) > 1:
            raise ValueError(f"levels must have the same number of ancestors for every class, got {levels!r}")
        table = None if levels is None else torch.as_tensor(levels, dtype=torch.int64)
        if table is not None and (table.ndim != 2 or not table.numel()):
            raise ValueError(f"levels must be a non-empty table [classes, ancestors], got shape {list(table.shape)}")
        self.register_buffer("levels", table)
        self.alpha, self.tau = check_not_negative("alpha", alpha), check_positive("tau", tau)
        self.rho, self.delta = check_not_negative("rho", rho), check_not_negative("delta", delta)
        self.offset, self.start = check_not_negative("offset", offset), check_not_negative("start", start)

    def compare(self, batch: PairBatch) -> Pairs:
        grade = self.grade(batch)
        same, diff = grade > 0, grade == 0
        if batch.ref_emb is None:
            same, diff = same.fill_diagonal_(False), diff.fill_diagonal_(False)
        pairs = Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff, symmetric=batch.ref_emb is None)
        return with_weights(pairs, *pair_weights(batch))

    def grade(self, batch: PairBatch) -> Tensor:
        """Compute the grade of each pair [A, R]: the fraction of the anchor's levels that the reference shares.

        A is the number of anchors. R is the number of references, the samples that the anchors are compared with.
        """
        labels, refs = batch.labels, batch.labels if batch.ref_labels is None else batch.ref_labels
        dtype = batch.emb.dtype
        if labels.ndim == 2:
            own = labels.to(dtype).sum(1, keepdim=True)
            return labels.to(dtype) @ refs.to(dtype).T / own.clamp_min(1)
        shared = same_kind(labels, refs).to(dtype)
        if self.levels is None:
            return shared
        if should_check_values(labels):
            lowest, highest = (int(x) for x in torch.cat([labels, refs]).aminmax())
            if lowest < 0 or highest >= len(self.levels):
                wrong = lowest if lowest < 0 else highest
                raise ValueError(
                    f"labels must be in 0..{len(self.levels) - 1} because levels has {len(self.levels)} classes, "
                    f"got {wrong}"
                )
        one, other = self.levels[labels.long()], self.levels[refs.long()]
        for level in range(one.shape[1]):
            shared += one[:, level, None] == other[None, :, level]
        return shared / (1 + one.shape[1])

    def check_relation(self, *, weighted: bool) -> None:
        if self.levels is not None:
            raise ValueError(
                f"relation cannot be used with {self}, which needs class labels: pass labels, or create the loss "
                "without levels"
            )

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return self.graded_cost(pairs, self.grade(batch))

    def graded_cost(self, pairs: Pairs, grade: Tensor) -> Tensor:
        """Compute the loss from the grades of all pairs. See `grade` for the definition of a grade."""
        relevance = relevances(torch.where(pairs.same, grade, 0.0), pairs.ref_weights, self.alpha)
        shape = self.tau, self.rho, self.offset, self.delta, self.start
        return hierarchical_ap(
            pairs.sim, grade, relevance, pairs.same, pairs.diff, pairs.weights, pairs.ref_weights, *shape
        )


def relevances(grade: Tensor, ref_weights: Tensor | None, alpha: float) -> Tensor:
    """Compute the relevance of every reference (column) for every anchor (row), with the shape of `grade`.

    The grade is the fraction of the anchor's levels that the reference shares. The relevance is grade^alpha, divided by
    the total weight of the references that have the same grade for this anchor. It is 0 for grade 0.
    """
    order = grade.sort(1)
    weights = torch.ones_like(grade) if ref_weights is None else ref_weights.expand_as(grade).gather(1, order.indices)
    total = torch.nn.functional.pad(weights.cumsum(1), (1, 0))
    first = torch.searchsorted(order.values, grade.contiguous())
    last = torch.searchsorted(order.values, grade.contiguous(), right=True)
    count = total.gather(1, last) - total.gather(1, first)
    return torch.where(grade > 0, grade**alpha / torch.where(count > 0, count, 1.0), 0.0)


@analytic("hierarchical_ap")
def hierarchical_ap(
    sim: Tensor,
    grade: Tensor,
    relevance: Tensor,
    same: Tensor,
    diff: Tensor,
    weights: Tensor | None,
    ref_weights: Tensor | None,
    tau: float,
    rho: float,
    offset: float,
    delta: float,
    start: float,
) -> tuple[Tensor, Tensor]:
    """Compute the weighted mean over anchors with positives of 1 - H-AP, and its gradient with respect to sim.

    See `HAPLoss` for the formula and the options, and `relevances` for `grade` and `relevance`.
    """
    gradient = torch.zeros_like(sim)
    table, columns = positive_table(sim, same)
    _, share = anchor_shares(same, weights, sim.dtype)
    r = torch.ones_like(sim[0]) if ref_weights is None else ref_weights
    mass = torch.where(same, relevance, 0.0) @ r
    share_of_term = share / torch.where(mass > 0, mass, 1.0)
    value = share.sum()
    valid = same | diff
    for k in range(columns.shape[1]):
        column, position = columns[:, k : k + 1], table[:, k : k + 1]
        is_positive = torch.isfinite(position)
        x = sim - torch.where(is_positive, position, 0.0)
        is_other = valid.scatter(1, column, False)
        is_lower = is_other & (grade < grade.gather(1, column))
        sigmoid = torch.sigmoid(x / tau)
        smooth = torch.where(x > delta, offset + rho * (x - delta), sigmoid + start * (x > 0))
        slope = torch.where(is_lower, torch.where(x > delta, rho, sigmoid * (1 - sigmoid) / tau), 0.0) * r
        is_before = is_other & (x >= 0)
        rank = 1 + torch.where(is_lower, smooth, is_before.to(sim.dtype)) @ r
        own = relevance.gather(1, column)
        h_rank = own[:, 0] + torch.where(is_before & same, torch.minimum(relevance, own), 0.0) @ r
        w = torch.where(is_positive[:, 0], share_of_term * r[column[:, 0]], 0.0)
        value = value - (w * h_rank / rank).sum()
        change = (w * h_rank / rank.square())[:, None] * slope
        gradient.add_(change).scatter_add_(1, column, -change.sum(1, keepdim=True))
    return value, gradient
