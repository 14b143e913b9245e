"""The grouped KL uncertainty set: a softmax of the losses over the positives and one over the negatives per anchor."""

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
    """KL weights over the positives and over the negatives of each anchor (Qi et al., Eq. 7, section 4.2.1, DRO-KL-G).

    The loss is (1/B) sum_i [ sum_{j in P_i} p+_ij l_ij + sum_{j in N_i} p-_ij l_ij ]. P_i and N_i are the positives and
    negatives of anchor i, l_ij are the losses of the pairs, and B is the number of anchors. If samples have weights,
    the term of each anchor is multiplied by its weight, and B is the sum of these weights.
    p+_ij = w_j e^{l_ij/gamma} / sum_{k in P_i} w_k e^{l_ik/gamma}, where w_j is the weight of sample j. p- is the
    same for N_i with gamma_neg. The sum over an empty P_i or N_i is 0. The robust value F (see `UncertaintySet.value`)
    has the same form, but the sum over P_i is replaced by gamma log( mean_{j in P_i} e^{l_ij/gamma} ), and likewise the
    sum over N_i with gamma_neg.

    With reduction="sum" and the pair loss "pair-margin" with m so large that every pair has a loss above 0, the
    gradient equals that of other losses up to a factor:
    - For gamma=1, it is the gradient of `lifted` with form="anchor", provided that the hinge of that loss is active.
    - It is B times the gradient of `hap2s` with form="exponential" and the same gamma, provided that the hinge of that
      loss is active.
    - With dummy=True, gamma=1/alpha and gamma_neg=1/beta, it is B times the gradient of `multi-similarity` without
      mining, with the threshold lambda + m for positives and lambda - m for negatives, where lambda is the threshold of
      "pair-margin". The paper claims lambda for both, which holds only for m = 0.

    Args:
        gamma: Temperature of the positives. The default is one of the paper's values {1, 0.1, 0.01, 0.001}.
        gamma_neg: Temperature of the negatives. None uses gamma.
        drop_zero: If True, leave out pairs whose loss is 0 (section 4.2.1).
        dummy: If True, add an element whose loss is 0 to every P_i and N_i (Eq. 23).
        reduction: "mean" divides by B, as in the released code. "sum" does not, as in Eq. 7.

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
        """Return (mask, gamma) for the positives and for the negatives."""
        same, diff = pairs.same, pairs.diff
        if self.drop_zero:
            positive = losses > 0
            same, diff = same & positive, diff & positive
        return (same, self.gamma), (diff, self.gamma if self.gamma_neg is None else self.gamma_neg)

    def anchor_shares(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """Return the weight of each of the A anchors in the loss. The result has shape [A, 1]."""
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
    """Compute share_i w_j e^{l_ij/gamma} / sum_k w_k e^{l_ik/gamma}. The sum is over the k in row i of the mask.

    Row i belongs to anchor i, and column j to a sample j that it is compared with. Entries outside the mask are 0. With
    `dummy`, e^0 = 1 is added to the sum.

    Args:
        losses: The losses l [A, R] of A anchors, each compared with R samples.
        mask: The mask of the group [A, R].
        weights: The weights w of these samples [R], or None if all are 1.
        gamma: The temperature.
        share: The weight of each anchor [A, 1].
        dummy: If True, add an element whose loss is 0 to every row.
    """
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
