"""KL uncertainty sets of DRO: weights that grow with e^{l/gamma}, over all pairs or within each anchor's groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nearfar.losses.dro.uncertainty import Uncertainty, check_count, count, inverse, sides
from nearfar.ops.pairs import Pairs, log_sum_exp, ratio
from nearfar.validation import check_choice, check_positive


@dataclass(frozen=True)
class KL(Uncertainty):
    """max_p sum p l - gamma KL(p || uniform), so p is proportional to w e^{l/gamma} (section 3.2, DRO-KL).

    weights="softmax_nonzero" (default): over the pairs with l > 0, as the paper has it. "softmax_all": over all pairs;
    for a loss that is never zero, such as binomial deviance. "expm1": p proportional to w (e^{l/gamma} - 1), the
    released code's, which has no robust value.
    `truncate=K` zeroes every p below the (K+1)-th largest loss and renormalizes; the released code does so with its
    K, and so keeps K + 1 unordered pairs.
    F = gamma log( sum w e^{l/gamma} / sum w ) over those pairs. gamma=0.1 is the paper's in 4.2.4 (searched in {0.1,
    0.3, ..., 0.9}). If every loss is 0, p is 0.

    >>> pairs = Pairs(torch.zeros(1, 3), torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]]))
    >>> KL()(torch.tensor([[1.0, 1.0, 0.0]]), pairs)
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    name: ClassVar[str] = "kl"
    gamma: float = 0.1
    weights: str = "softmax_nonzero"
    truncate: int | str | None = None

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)
        check_choice("weights", self.weights, ("softmax_nonzero", "softmax_all", "expm1"))
        if self.truncate is not None:
            check_count("truncate", self.truncate, 1)

    def support(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """The pairs that can have weight, a mask [A, R]."""
        mask = pairs.same | pairs.diff
        if self.weights != "softmax_all":
            mask = mask & (losses > 0)
        if self.truncate is None:
            return mask
        # the cut must not fall between the two entries of a pair, which may differ by rounding
        losses = torch.minimum(losses, losses.T) if pairs.symmetric else losses
        return mask & (losses >= next_largest(losses, pairs, self.truncate))

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        z = torch.where(self.support(losses, pairs), losses, -torch.inf)
        top = z.amax()
        p = exp_(z.sub_(torch.where(top > -torch.inf, top, 0.0)).mul_(1 / self.gamma))
        if self.weights == "expm1":
            p *= -torch.expm1(losses.clamp_min(0) / -self.gamma)  # e^z - 1 = e^z (1 - e^-z), which does not overflow
        if pairs.weights is not None and pairs.ref_weights is not None:
            p *= pairs.weights[:, None] * pairs.ref_weights
        return p.mul_(inverse(p.sum()))

    def value(self, losses: Tensor, pairs: Pairs) -> Tensor:
        if self.weights == "expm1":
            raise ValueError("weights='expm1' has no robust value: its p solves no penalized maximization")
        mask = self.support(losses.detach(), pairs)
        row, each = losses.reshape(1, -1), pairs.mass(mask).flatten()
        return log_mean_exp(row, mask.view(1, -1), each, self.gamma, dummy=False).sum()


@dataclass(frozen=True)
class GroupedKL(Uncertainty):
    """KL within each anchor's positives and, apart, its negatives (Eq. 7 and section 4.2.1, DRO-KL-G).

    p+_ij = w_j e^{l_ij/gamma} / sum_{P_i}, likewise p- over N_i with gamma_neg (default: gamma); the loss is
    (1/B) sum_i [ sum_{P_i} p+ l + sum_{N_i} p- l ], B the sum of the anchors' weights. An empty group adds 0. F has
    gamma log mean e^{l/gamma} of each group in place of its sum.

    reduction="sum" is Eq. 7 as printed, "mean" (default) the released code. drop_zero=True (default, section 4.2.1)
    leaves pairs of loss 0 out. dummy=True adds an element of loss 0 to every group (Eq. 23). gamma=0.1 is one of the
    paper's {1, 0.1, 0.01, 0.001}. With pair-margin of large m, reduction="sum" has the gradient of
    - generalized lifted structure, `lifted(form="anchor")`, at gamma=1 where its hinge is active;
    - B x HAP2S with exponential weights at the same gamma where its hinge is active;
    - B x multi-similarity without mining with dummy=True, gamma=1/alpha, gamma_neg=1/beta, thresholds lambda + m for
      positives and lambda - m for negatives (the paper claims lambda for both, which holds for m = 0 only).

    >>> pairs = Pairs(torch.zeros(1, 3), torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]]))
    >>> GroupedKL()(torch.tensor([[1.0, 3.0, 3.0]]), pairs)
    tensor([[1.0000, 0.5000, 0.5000]])
    """

    name: ClassVar[str] = "kl-g"
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
        """(mask, gamma) of the positives and of the negatives."""
        same, diff = pairs.same, pairs.diff
        if self.drop_zero:
            there = losses > 0
            same, diff = same & there, diff & there
        return (same, self.gamma), (diff, self.gamma if self.gamma_neg is None else self.gamma_neg)

    def anchor_shares(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """[A, 1]: how much of the loss an anchor is."""
        each = torch.ones_like(losses[:, :1]) if pairs.weights is None else pairs.weights[:, None]
        return each if self.reduction == "sum" else each * inverse(each.sum())

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        share = self.anchor_shares(losses, pairs)
        pos, neg = (
            row_softmax(losses, mask, pairs.ref_weights, gamma, share, dummy=self.dummy)
            for mask, gamma in self.groups(losses, pairs)
        )
        return pos.add_(neg)

    def value(self, losses: Tensor, pairs: Pairs) -> Tensor:
        each = torch.ones_like(losses[0]) if pairs.ref_weights is None else pairs.ref_weights
        pos, neg = (
            log_mean_exp(losses, mask, each, gamma, dummy=self.dummy)
            for mask, gamma in self.groups(losses.detach(), pairs)
        )
        return ((pos + neg) * self.anchor_shares(losses, pairs)[:, 0]).sum()


def row_softmax(
    losses: Tensor, mask: Tensor, weights: Tensor | None, gamma: float, share: Tensor, *, dummy: bool
) -> Tensor:
    """share_i w_j e^{l_ij/gamma} / ([1 +] sum over the mask), 0 outside of it and where it is empty."""
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


def exp_(z: Tensor) -> Tensor:
    """e^z of z <= 0 in place, and 0 below e^-80 (float64: e^-700): on a CPU, exp is 4 times slower where it underflows
    to 0 and 40 times where it yields denormals, which a small gamma does for most pairs."""
    floor = -700.0 if z.dtype == torch.float64 else -80.0
    return z.clamp_min_(floor).exp_().sub_(2 * math.exp(floor)).clamp_min_(0)


def log_mean_exp(losses: Tensor, mask: Tensor, weights: Tensor, gamma: float, *, dummy: bool) -> Tensor:
    """gamma log( ([1 +] sum w e^{l/gamma}) / ([1 +] sum w) ) over the mask of each row; 0 where it is empty."""
    count = torch.where(mask, weights, 0.0).sum(1) + float(dummy)
    value = log_sum_exp(losses / gamma, mask, weights=weights, plus_one=dummy)
    return torch.where(count > 0, gamma * (value - torch.where(count > 0, count, 1.0).log()), 0.0)


def next_largest(losses: Tensor, pairs: Pairs, k: int | str) -> Tensor:
    """The loss at which the weights of the pairs, largest loss first, exceed K; -inf if they never do."""
    budget = sides(pairs) * count(k, pairs)
    mask = pairs.same | pairs.diff
    values = torch.where(mask, losses, -torch.inf).flatten()
    none = torch.full_like(values[:1], -torch.inf)
    if isinstance(budget, int) and pairs.weights is None:
        return values.topk(budget + 1).values[-1] if budget < len(values) else none[0]
    values, index = values.sort(descending=True, stable=True)
    total = pairs.mass(mask).flatten()[index].cumsum(0)
    return torch.cat([values, none])[(total <= budget).sum()]
