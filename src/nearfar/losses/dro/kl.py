"""The KL uncertainty set: a softmax of the losses of all pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.losses.dro.uncertainty import (
    UncertaintySet,
    check_pair_count,
    count_pairs,
    entries_per_pair,
    inverse,
    register,
)
from nearfar.ops.pairs import Pairs, log_sum_exp
from nearfar.validation import check_choice, check_positive


@register("kl")
@dataclass(frozen=True)
class KL(UncertaintySet):
    """Weights p proportional to w e^{l/gamma} for pairs with loss l and weight w (Qi et al., section 3.2, DRO-KL).

    p maximizes sum p l - gamma KL(p || q) with q = w / sum w, which is uniform without sample weights. The maximum is
    the robust value F = gamma log( sum w e^{l/gamma} / sum w ). The sums are over the pairs whose p can be above 0
    with the options `weights` and `truncate`. With the default options, p is 0 if every loss is 0.

    Args:
        gamma: Temperature. The default is the paper's value in section 4.2.4, from a search over {0.1, 0.3, ..., 0.9}.
        weights: "softmax_nonzero" (from the paper) gives weight only to pairs with l > 0. "softmax_all" gives weight to
            all pairs; use it for a loss that is never zero, such as binomial deviance. "expm1" (from the released code)
            makes p proportional to w (e^{l/gamma} - 1); it has no robust value.
        truncate: A number K of unordered pairs, or "2B" for twice the number of anchors. p is set to 0 for losses below
            the (K+1)-th largest loss and then normalized again, as in the released code. K + 1 pairs remain, or more if
            several losses are equal to the (K+1)-th largest. None keeps all pairs.

    >>> pairs = Pairs(torch.zeros(1, 3), torch.tensor([[True, False, False]]), torch.tensor([[False, True, True]]))
    >>> KL()(torch.tensor([[1.0, 1.0, 0.0]]), pairs)
    tensor([[0.5000, 0.5000, 0.0000]])
    """

    gamma: float = 0.1
    weights: str = "softmax_nonzero"
    truncate: int | str | None = None

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)
        check_choice("weights", self.weights, ("softmax_nonzero", "softmax_all", "expm1"))
        if self.truncate is not None:
            check_pair_count("truncate", self.truncate, 1)

    def support(self, losses: Tensor, pairs: Pairs) -> Tensor:
        """Return the mask of the pairs whose weight p can be above 0 with the options `weights` and `truncate`."""
        mask = pairs.same | pairs.diff
        if self.weights != "softmax_all":
            mask = mask & (losses > 0)
        if self.truncate is None:
            return mask
        # The two matrix entries of a pair may differ by rounding. Taking the minimum keeps or drops both of them.
        losses = torch.minimum(losses, losses.T) if pairs.symmetric else losses
        return mask & (losses >= next_largest(losses, pairs, self.truncate))

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        z = torch.where(self.support(losses, pairs), losses, -torch.inf)
        top = z.amax()
        p = exp_(z.sub_(torch.where(top > -torch.inf, top, 0.0)).mul_(1 / self.gamma))
        if self.weights == "expm1":
            p *= -torch.expm1(losses.clamp_min(0) / -self.gamma)  # e^z - 1 = e^z (1 - e^-z) without overflow
        if pairs.weights is not None and pairs.ref_weights is not None:
            p *= pairs.weights[:, None] * pairs.ref_weights
        return p.mul_(inverse(p.sum()))

    def value(self, losses: Tensor, pairs: Pairs) -> Tensor:
        if self.weights == "expm1":
            raise ValueError("weights='expm1' has no robust value: use weights='softmax_nonzero' or 'softmax_all'")
        mask = self.support(losses.detach(), pairs)
        mass = pairs.mass(mask).flatten()
        return log_mean_exp(losses.reshape(1, -1), mask.view(1, -1), mass, self.gamma, dummy=False).sum()


def exp_(z: Tensor) -> Tensor:
    """Compute e^z in place for z <= 0. Results of about e^-80 or less (float64: e^-700) become 0.

    On a CPU, exp is 4 times slower if the result underflows to 0, and 40 times slower if it is a denormal number. With
    a small gamma, this would happen for most pairs.
    """
    floor = -700.0 if z.dtype == torch.float64 else -80.0
    return z.clamp_min_(floor).exp_().sub_(2 * math.exp(floor)).clamp_min_(0)


def log_mean_exp(losses: Tensor, mask: Tensor, weights: Tensor, gamma: float, *, dummy: bool) -> Tensor:
    """Compute gamma log( sum w e^{l/gamma} / sum w ) for each row of the mask, where l are losses and w are weights.

    The result has one value per row; it is 0 for an empty row. With `dummy`, 1 is added to both sums.
    """
    count = torch.where(mask, weights, 0.0).sum(1) + float(dummy)
    value = log_sum_exp(losses / gamma, mask, weights=weights, plus_one=dummy)
    return torch.where(count > 0, gamma * (value - torch.where(count > 0, count, 1.0).log()), 0.0)


def next_largest(losses: Tensor, pairs: Pairs, k: int | str) -> Tensor:
    """Return the (K+1)-th largest loss of the unordered pairs, or -inf if there are at most K pairs.

    K is `k`, or twice the number of anchors if `k` is "2B". With sample weights, the pairs are sorted by decreasing
    loss, and the result is the loss of the first pair at which the cumulative weight exceeds K.
    """
    budget = entries_per_pair(pairs) * count_pairs(k, pairs)
    mask = pairs.same | pairs.diff
    values = torch.where(mask, losses, -torch.inf).flatten()
    bottom = torch.full_like(values[:1], -torch.inf)
    if isinstance(budget, int) and pairs.weights is None:
        return values.topk(budget + 1).values[-1] if budget < len(values) else bottom[0]
    values, index = values.sort(descending=True, stable=True)
    total = pairs.mass(mask).flatten()[index].cumsum(0)
    return torch.cat([values, bottom]).gather(0, (total <= budget).sum()[None])[0]
