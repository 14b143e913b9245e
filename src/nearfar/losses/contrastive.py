"""Contrastive loss: pull positives together, and push negatives at least a margin apart."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.host_reads import is_on_host
from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss, graded_mean
from nearfar.mining import closest_negatives
from nearfar.ops.custom_grad import analytic
from nearfar.ops.geometry import cosine_matrix, negative_distance_matrix
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_choice

DEFAULT_MARGINS = {"squared": (0.0, 1.0), "distance": (0.0, 1.0), "cosine": (1.0, 0.0)}


def hinges(sim: Tensor, same: Tensor, pos_margin: float, neg_margin: float) -> Tensor:
    """Compute [pos_margin - sim]_+ for positives and [sim - neg_margin]_+ for negatives, elementwise."""
    return torch.where(same, pos_margin - sim, sim - neg_margin).relu()


def nonzero_hinges(pairs: Pairs, pos_margin: float, neg_margin: float) -> Tensor:
    """Compute the mean of the non-zero `hinges` of positives plus the mean of the non-zero `hinges` of negatives."""
    if pairs.weights is None:
        return _nonzero_hinges(pairs.sim, pairs.same, pairs.diff, pos_margin, neg_margin)
    losses = hinges(pairs.sim, pairs.same, pos_margin, neg_margin)
    active = losses.detach() > 0
    return pairs.mean(losses, pairs.same & active) + pairs.mean(losses, pairs.diff & active)


@analytic("nonzero_hinges")
def _nonzero_hinges(
    sim: Tensor, same: Tensor, diff: Tensor, pos_margin: float, neg_margin: float
) -> tuple[Tensor, Tensor]:
    """Compute `nonzero_hinges` without weights. The function body returns the value and its gradient.

    Autograd would make twice as many passes over the matrix, which is large if the references are a memory.
    """
    cost = (sim - neg_margin).clamp_min_(0).masked_fill_(~diff, 0.0)
    count = torch.count_nonzero(cost).clamp_min(1)
    value, gradient = cost.sum() / count, cost.sign_().div_(count)
    if is_on_host(sim):  # the positives are usually few; on a GPU, the host would have to wait for their number
        index = torch.where(same)
        cost = (pos_margin - sim[index]).clamp_min_(0)
        count = torch.count_nonzero(cost).clamp_min(1)
        value = value + cost.sum() / count
        gradient[index] = cost.sign_().div_(-count)
        return value, gradient
    cost = (pos_margin - sim).clamp_min_(0).masked_fill_(~same, 0.0)
    count = torch.count_nonzero(cost).clamp_min(1)
    value = value + cost.sum() / count
    return value, gradient.sub_(cost.sign_().div_(count))


@analytic("mean_squared_hinges")
def _mean_squared_hinges(
    sim: Tensor, same: Tensor, diff: Tensor, pos_margin: float, neg_margin: float
) -> tuple[Tensor, Tensor]:
    """Compute the mean over pairs of the squared `hinges`, without weights. The body returns value and gradient."""
    count = (torch.count_nonzero(same) + torch.count_nonzero(diff)).clamp_min(1)
    cost = (sim - neg_margin).clamp_min_(0).masked_fill_(~diff, 0.0)
    value = cost.square().sum()
    if is_on_host(sim):  # as in `_nonzero_hinges`
        index = torch.where(same)
        positive = (pos_margin - sim[index]).clamp_min_(0)
        cost[index] = -positive
    else:
        positive = (pos_margin - sim).clamp_min_(0).masked_fill_(~same, 0.0)
        cost.sub_(positive)
    return (value + positive.square().sum()) / count, cost.mul_(2 / count.to(sim.dtype))


@register("contrastive")
class ContrastiveLoss(PairLoss):
    """Contrastive loss (Hadsell et al., CVPR 2006) in three forms, on unit vectors.

    D is the Euclidean distance of a pair and S is its cosine.

    - form="squared" (PROFS, arXiv 1907.07585, Eq. 3.1): the mean over all pairs of [D - pos_margin]_+^2 for positives
      and [neg_margin - D]_+^2 for negatives. The default margins 0 and 1 are our choice; PROFS does not state them.
    - form="distance": the mean of the non-zero positive terms [D - pos_margin]_+ plus the mean of the non-zero negative
      terms [neg_margin - D]_+. The form and its default margins 0 and 1 are those of pytorch-metric-learning.
    - form="cosine": the same with the terms [pos_margin - S]_+ and [S - neg_margin]_+. The default margins are 1 and 0,
      as in the baseline of BSPML (arXiv 2211.11751).

    In a batch from the PROFS sampler (`nearfar.samplers.Profs`), each class representative uses only
    its closest negatives, as many as it has positives.

    Args:
        form: "squared", "distance" or "cosine".
        pos_margin: Margin of the positives. None uses the default of the form.
        neg_margin: Margin of the negatives. None uses the default of the form.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> ContrastiveLoss()(x, torch.tensor([0, 0, 1]))  # one positive pair with D^2 = 2
    tensor(0.6667)
    """

    def __init__(
        self, *, form: str = "squared", pos_margin: float | None = None, neg_margin: float | None = None
    ) -> None:
        super().__init__()
        self.form = check_choice("form", form, DEFAULT_MARGINS)
        pos, neg = DEFAULT_MARGINS[form]
        self.pos_margin = pos if pos_margin is None else pos_margin
        self.neg_margin = neg if neg_margin is None else neg_margin

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return cosine_matrix(x, y) if self.form == "cosine" else negative_distance_matrix(x, y)

    def elementwise(self, pairs: Pairs) -> Tensor:
        """Compute the loss of every pair. The result has the shape of `pairs.sim`."""
        if self.form == "cosine":
            return hinges(pairs.sim, pairs.same, self.pos_margin, self.neg_margin)
        losses = hinges(pairs.sim, pairs.same, -self.pos_margin, -self.neg_margin)
        return losses.square() if self.form == "squared" else losses

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if batch.representatives:
            pairs = closest_negatives(pairs)
        if self.form == "squared":
            if pairs.weights is not None:
                return pairs.mean(self.elementwise(pairs))
            return _mean_squared_hinges(pairs.sim, pairs.same, pairs.diff, -self.pos_margin, -self.neg_margin)
        sign = 1 if self.form == "cosine" else -1  # similarities are negative distances
        return nonzero_hinges(pairs, sign * self.pos_margin, sign * self.neg_margin)

    @property
    def supports_grades(self) -> bool:
        return self.form == "squared"

    def graded_cost(self, pairs: Pairs, grade: Tensor) -> Tensor:
        """Compute the mean over pairs of grade * (loss as a positive) + (1 - grade) * (loss as a negative).

        The grade of a pair is between 0 (negative) and 1 (positive).
        """
        if self.form != "squared":
            raise ValueError(
                f"grades between 0 and 1 need form='squared', got form={self.form!r}: the other forms average only "
                "over non-zero terms"
            )
        return graded_mean(pairs, grade, self.elementwise)
