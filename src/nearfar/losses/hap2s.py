"""HAP2S: the point-to-set triplet loss, sets averaged with harder samples weighing more."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_choice, check_positive


@register("hap2s")
class HAP2SLoss(PairLoss):
    """Hard-aware point-to-set loss (Yu et al., ECCV 2018, arXiv 1807.11206), on cosines.

    (1/B) sum_i [ Sbar_i^- - Sbar_i^+ + margin ]_+ , Sbar the weighted mean similarity to the anchor's negatives and
    positives, weights constant in the gradient; anchors that lack one of the two add nothing, B counts them all.

    form="exponential": weights e^{-S/gamma} on positives and e^{S/gamma} on negatives; B times its gradient is the
    gradient of generalized lifted structure where the hinge is active (DRO, arXiv 1912.11194, section 6).
    form="polynomial": (D + 1)^power on positives and (D + 1)^(-2 power) on negatives, D = sqrt(2 - 2S); Yu's form, with
    power=10. That both forms average cosines, and gamma=0.5, margin=0.5, are ours.

    >>> HAP2SLoss()(torch.eye(3), torch.tensor([0, 0, 1]))  # two of three anchors have both
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
    """Per anchor [A]: mean of the similarities over the mask with weights e^{log_weights}; 0 where it is empty."""
    z = torch.where(mask, log_weights, -torch.inf)
    top = z.amax(1, keepdim=True)
    weights = z.sub_(torch.where(top > -torch.inf, top, 0.0)).exp_()
    if pairs.ref_weights is not None:
        weights *= pairs.ref_weights
    return (weights * ratio(torch.ones_like(top), weights.sum(1, keepdim=True)) * pairs.sim).sum(1)
