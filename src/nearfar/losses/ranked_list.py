"""Ranked list loss: pull positives into a hypersphere around the anchor and push negatives out of a larger one."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import negative_distance_matrix
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_not_negative


@register("ranked-list")
class RankedListLoss(PairLoss):
    """Ranked list loss (Wang et al., CVPR 2019, arXiv 1903.03238), on distances D of unit vectors.

    The loss is the mean over anchors of (1 - balance) L_P + balance L_N. L_P is the weighted mean of
    D - (alpha - margin) over the positives with D > alpha - margin, with weights
    e^{temperature_pos (D - (alpha - margin))}. L_N is the weighted mean of alpha - D over the negatives with D < alpha,
    with weights e^{temperature_neg (alpha - D)}. A mean over no samples is 0. Gradients flow through the weights.
    The sample weight of a positive or negative multiplies its weight in L_P or L_N. The sample weight of an anchor
    multiplies its term in the mean over anchors.

    Args:
        margin: The margin between positives and negatives. The default is our choice.
        alpha: The radius that negatives are pushed out of. The default is our choice.
        temperature_neg: The temperature of the negatives. The default is our choice.
        temperature_pos: The temperature of the positives. The default 0 gives all positives the same weight.
        balance: The weight of the negatives, from 0 to 1. The default is our choice.

    >>> loss = RankedListLoss(temperature_neg=0.0)
    >>> loss(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))  # 1/2 (sqrt(2) - 0.8)
    tensor(0.3071)
    """

    def __init__(
        self,
        *,
        margin: float = 0.4,
        alpha: float = 1.2,
        temperature_neg: float = 10.0,
        temperature_pos: float = 0.0,
        balance: float = 0.5,
    ) -> None:
        super().__init__()
        self.margin, self.alpha = check_not_negative("margin", margin), check_not_negative("alpha", alpha)
        self.temperature_neg = check_not_negative("temperature_neg", temperature_neg)
        self.temperature_pos = check_not_negative("temperature_pos", temperature_pos)
        if not 0 <= balance <= 1:
            raise ValueError(f"balance must be between 0 and 1, got {balance}")
        self.balance = balance

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return negative_distance_matrix(x, y)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        terms = ranked_list_terms(
            pairs, self.margin, self.alpha, self.temperature_neg, self.temperature_pos, self.balance
        )
        return pairs.anchor_mean(terms)


def ranked_list_terms(
    pairs: Pairs,
    margin: float,
    alpha: float,
    temperature_neg: float,
    temperature_pos: float,
    balance: float,
    slack: float = 0.0,
) -> Tensor:
    """Compute the loss of every anchor, [A]; see `RankedListLoss`.

    `pairs.sim` holds the negated distances -D. `slack` is added to the sums of the weights.
    """
    pos = weighted_excess(margin - alpha - pairs.sim, pairs.same, temperature_pos, pairs.ref_weights, slack)
    neg = weighted_excess(alpha + pairs.sim, pairs.diff, temperature_neg, pairs.ref_weights, slack)
    return (1 - balance) * pos + balance * neg


def weighted_excess(excess: Tensor, mask: Tensor, temperature: float, weights: Tensor | None, slack: float) -> Tensor:
    """Compute the mean of the entries above 0 in each row of `excess`, weighted by exp(temperature * excess).

    Only entries in the mask count.

    Args:
        excess: The values [A, R].
        mask: The pairs that count [A, R].
        temperature: The factor in the exponent.
        weights: Further weights of the columns [R], or None.
        slack: A number that is added to the sums of the weights.

    Returns:
        The means [A]; 0 where no entry counts.
    """
    counted = mask & (excess.detach() > 0)
    if weights is not None:
        counted = counted & (weights > 0)
    z = torch.where(counted, temperature * excess, -torch.inf)
    top = z.detach().amax(1, keepdim=True)
    top = torch.where(top > -torch.inf, top, 0.0)
    e = (z - top).exp()
    if weights is not None:
        e = e * weights
    return ratio((e * torch.where(counted, excess, 0.0)).sum(1), e.sum(1) + slack * torch.exp(-top[:, 0]))
