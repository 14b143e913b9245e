"""HAP2S: a triplet loss on weighted mean similarities, in which harder samples have larger weights."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_choice, check_not_negative, check_positive


@register("hap2s")
class HAP2SLoss(PairLoss):
    """Hard-aware point-to-set loss (Yu et al., ECCV 2018, arXiv 1807.11206), on cosines S.

    The loss is (1/B) sum_i [ Sbar_i^- - Sbar_i^+ + margin ]_+ for B anchors i, where Sbar_i^- and Sbar_i^+ are weighted
    means of the similarities of the anchor to its negatives and to its positives. The weights are treated as constants
    in the gradient. An anchor without positives or without negatives contributes 0 but is counted in B.

    - form="exponential": the weights are e^{-S/gamma} for positives and e^{S/gamma} for negatives. For gamma=1, B times
      the gradient equals the gradient of `lifted` with form="anchor", provided that the hinges of both losses are
      active (DRO, arXiv 1912.11194, section 6).
    - form="polynomial" (from Yu et al.): the weights are (D + 1)^power for positives and (D + 1)^(-2 power) for
      negatives, with D = sqrt(2 - 2S).

    Both forms average cosines, which is our choice.

    Args:
        form: "exponential" or "polynomial".
        gamma: Temperature of form "exponential". The default is our choice.
        power: Exponent of form "polynomial". The default is from Yu et al.
        margin: The margin of the hinge. The default is our choice.

    >>> HAP2SLoss()(torch.eye(3), torch.tensor([0, 0, 1]))  # two of three anchors have a positive
    tensor(0.3333)
    """

    def __init__(
        self, *, form: str = "exponential", gamma: float = 0.5, power: float = 10.0, margin: float = 0.5
    ) -> None:
        super().__init__()
        self.form = check_choice("form", form, ("exponential", "polynomial"))
        self.gamma, self.power = check_positive("gamma", gamma), check_positive("power", power)
        self.margin = check_not_negative("margin", margin)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        sim = pairs.sim.detach()
        if self.form == "exponential":
            log_pos, log_neg = -sim / self.gamma, sim / self.gamma
        else:
            log_pos = self.power * torch.log1p((2 - 2 * sim).clamp_min(0).sqrt())
            log_neg = -2 * log_pos
        pos = soft_mean(pairs, log_pos, pairs.same)
        neg = soft_mean(pairs, log_neg, pairs.diff)
        both = pairs.same.any(1) & pairs.diff.any(1)
        return pairs.anchor_mean(torch.where(both, neg - pos + self.margin, 0.0).relu())


def soft_mean(pairs: Pairs, log_weights: Tensor, mask: Tensor) -> Tensor:
    """Compute the weighted mean similarity of each anchor to the samples in its row of the mask.

    The weights are e^{log_weights}. The result has shape [A] and is 0 where the row of the mask is empty.
    """
    z = torch.where(mask, log_weights, -torch.inf)
    top = z.amax(1, keepdim=True)
    weights = z.sub_(torch.where(top > -torch.inf, top, 0.0)).exp_()
    if pairs.ref_weights is not None:
        weights *= pairs.ref_weights
    return (weights * ratio(torch.ones_like(top), weights.sum(1, keepdim=True)) * pairs.sim).sum(1)
