"""HAP2S: a point-to-set triplet loss in which harder samples have more weight in the mean of a set."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_choice, check_positive


@register("hap2s")
class HAP2SLoss(PairLoss):
    """Hard-aware point-to-set loss (Yu et al., ECCV 2018, arXiv 1807.11206), on cosines S.

    (1/B) sum_i [ Sbar_i^- - Sbar_i^+ + margin ]_+, Sbar the weighted mean similarity to the anchor's negatives and
    positives. The weights are constants in the gradient. An anchor without positives or negatives adds 0; B counts it.

    - form="exponential": weights e^{-S/gamma} on positives and e^{S/gamma} on negatives. B times the gradient is that
      of generalized lifted structure where the hinge is active (DRO, arXiv 1912.11194, section 6).
    - form="polynomial": weights (D + 1)^power on positives and (D + 1)^(-2 power) on negatives, D = sqrt(2 - 2S)
      (Yu's).

    That both forms average cosines is ours.

    Args:
        form: "exponential" or "polynomial".
        gamma: Temperature of form "exponential"; 0.5 is ours.
        power: Exponent of form "polynomial"; 10 is Yu's.
        margin: 0.5 is ours.

    >>> HAP2SLoss()(torch.eye(3), torch.tensor([0, 0, 1]))  # two of three anchors have a positive
    tensor(0.3333)
    """

    def __init__(
        self, *, form: str = "exponential", gamma: float = 0.5, power: float = 10.0, margin: float = 0.5
    ) -> None:
        super().__init__()
        self.form = check_choice("form", form, ("exponential", "polynomial"))
        self.gamma, self.power = check_positive("gamma", gamma), check_positive("power", power)
        self.margin = margin

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
    """Compute the mean similarity over each row of the mask with weights e^{log_weights}, [A]; 0 where it is empty."""
    z = torch.where(mask, log_weights, -torch.inf)
    top = z.amax(1, keepdim=True)
    weights = z.sub_(torch.where(top > -torch.inf, top, 0.0)).exp_()
    if pairs.ref_weights is not None:
        weights *= pairs.ref_weights
    return (weights * ratio(torch.ones_like(top), weights.sum(1, keepdim=True)) * pairs.sim).sum(1)
