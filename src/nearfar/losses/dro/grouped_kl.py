"""The grouped KL uncertainty set: weights that grow with e^{l/gamma} within each anchor's positives and negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.losses.dro.kl import exp_, log_mean_exp
from nearfar.losses.dro.uncertainty import UncertaintySet, inverse, register
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_choice, check_positive


@register("kl-g")
@dataclass(frozen=True)
class GroupedKL(UncertaintySet):
    """KL within each anchor's positives and within its negatives (Qi et al., Eq. 7 and section 4.2.1, DRO-KL-G).

    p+_ij = w_j e^{l_ij/gamma} / sum_{P_i}, likewise p- over N_i with gamma_neg; the loss is
    (1/B) sum_i [ sum_{P_i} p+ l + sum_{N_i} p- l ], B the sum of the anchors' weights. An empty group adds 0. F has
    gamma log mean e^{l/gamma} of each group in place of its sum.

    With pair-margin of large m, reduction="sum" has the gradient of
    - generalized lifted structure, `lifted(form="anchor")`, at gamma=1 where its hinge is active;
    - B x HAP2S with exponential weights at the same gamma where its hinge is active;
    - B x multi-similarity without mining with dummy=True, gamma=1/alpha, gamma_neg=1/beta, thresholds lambda + m for
      positives and lambda - m for negatives (the paper claims lambda for both, which holds only for m = 0).

    Args:
        gamma: Temperature of the positives; 0.1 is one of the paper's {1, 0.1, 0.01, 0.001}.
        gamma_neg: Temperature of the negatives; None is gamma.
        drop_zero: Leave out pairs of loss 0 (section 4.2.1).
        dummy: Add an element of loss 0 to every group (Eq. 23).
        reduction: "mean" over anchors is the released code, "sum" is Eq. 7 as printed.

    >>> pairs = Pairs(torch.zeros(1, 3), torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]]))
    >>> GroupedKL()(torch.tensor([[1.0, 3.0, 3.0]]), pairs)
    tensor([[1.0000, 0.5000, 0.5000]])
    """

    gamma: float = 0.1
    gamma_neg: float | None = None
    drop_zero: bool = True
    dummy: bool = False
    reduction: str = "mean"

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)
        if self.gamma_neg is not None:
            check_positive("gamma_neg", self.gamma_neg)
        check_choice("reduction", self.reduction, ("mean", "sum"))

    def groups(self, losses: Tensor, pairs: Pairs) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
        """Return (mask, gamma) of the positives and of the negatives."""
        same, diff = pairs.same, pairs.diff
        if self.drop_zero:
            positive = losses > 0
            same, diff = same & positive, diff & positive
        return (same, self.gamma), (diff, self.gamma if self.gamma_neg is None else self.gamma_neg)

    def anchor_shares(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """Return the weight of each anchor in the loss, [A, 1]."""
        weights = torch.ones_like(losses[:, :1]) if pairs.weights is None else pairs.weights[:, None]
        return weights if self.reduction == "sum" else weights * inverse(weights.sum())

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        share = self.anchor_shares(losses, pairs)
        pos, neg = (
            row_softmax(losses, mask, pairs.ref_weights, gamma, share, dummy=self.dummy)
            for mask, gamma in self.groups(losses, pairs)
        )
        return pos.add_(neg)

    def value(self, losses: Tensor, pairs: Pairs) -> Tensor:
        weights = torch.ones_like(losses[0]) if pairs.ref_weights is None else pairs.ref_weights
        pos, neg = (
            log_mean_exp(losses, mask, weights, gamma, dummy=self.dummy)
            for mask, gamma in self.groups(losses.detach(), pairs)
        )
        return ((pos + neg) * self.anchor_shares(losses, pairs)[:, 0]).sum()


def row_softmax(
    losses: Tensor, mask: Tensor, weights: Tensor | None, gamma: float, share: Tensor, *, dummy: bool
) -> Tensor:
    """Compute share_i w_j e^{l_ij/gamma} / ([1 +] sum over the mask); 0 outside the mask and where it is empty."""
    z = torch.where(mask, losses, -torch.inf)
    top = z.amax(1, keepdim=True)
    top = top.clamp_min(0) if dummy else torch.where(top > -torch.inf, top, 0.0)
    p = exp_(z.sub_(top).mul_(1 / gamma))
    if weights is not None:
        p *= weights
    total = p.sum(1, keepdim=True)
    if dummy:
        total = total + torch.exp(top / -gamma)
    return p.mul_(ratio(share, total))
