"""The chi-square uncertainty set of DRO: the mean plus a multiple of the standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nearfar.losses.dro.uncertainty import Uncertainty, sides
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_positive


@dataclass(frozen=True)
class Chi2(Uncertainty):
    """The variance-regularized ball (the equation under Eq. 1; Namkoong and Duchi, NeurIPS 2017).

    max_p sum p l over p >= 0, sum p = 1 with D(p || uniform) <= rho / n, n the number of unordered pairs (weighted:
    the sum of their weights, and uniform is w / n), D the divergence of phi(t) = (t - 1)^2 / 2, that is
    sum_i (n p_i - 1)^2 <= 2 rho. Pairs of loss 0 are pairs.

    Where no p_i would have to be negative, the maximum is mean(l) + sqrt(2 rho Var(l) / n), Var the plain variance
    (divided by n): n p_i = 1 + sqrt(2 rho / n) (l_i - mean) / sd. Elsewhere p_i is proportional to [l_i - eta]_+, found
    exactly; a ball so large that it holds all the weight on the largest loss (or equally on several) gives that.
    rho=1 is ours: the paper made no experiment with this set.

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> p = Chi2(rho=0.25)(torch.tensor([[3.0, 1.0]]), pairs)
    >>> p  # mean 2, sd 1, n = 2: n p = 1 +- 1/2
    tensor([[0.7500, 0.2500]])
    """

    name: ClassVar[str] = "chi2"
    rho: float = 1.0

    def __post_init__(self) -> None:
        check_positive("rho", self.rho)

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        p: Tensor = chi2_weights(losses, pairs.mass(pairs.same | pairs.diff), self.rho, sides(pairs))
        return p


@torch.library.custom_op("nearfar::chi2_weights", mutates_args=())
def chi2_weights(losses: Tensor, each: Tensor, rho: float, multiplicity: int) -> Tensor:
    """p that makes sum p l largest with sum q (p/q)^2 <= c = 1 + 2 rho / n, q = each / sum each.

    p = q [l - eta]_+ / s. For a given set of pairs above eta, with q-mass Q, mean M and variance V of their losses,
    sum p = 1 and the ball give (M - eta)^2 = V / (c Q - 1), s = Q (M - eta). If all pairs are above their eta, that is
    the closed form. Else those at or below it leave, eta rises, and the set shrinks until nobody leaves: after a few
    rounds, on few pairs, without a sort. An opaque operator, because their number depends on the losses.
    """
    total = each.sum().double()
    if total == 0:
        return torch.zeros_like(losses)
    c = 1 + 2 * rho * multiplicity / total
    past_mean = losses - (each * losses).sum().double() / total
    gap = ((past_mean.square() * each).sum().double() / total / (c - 1)).sqrt()
    if gap == 0:
        return each / total
    p = each * (past_mean + gap)
    if p.amin() >= 0:
        # by its own sum: where all losses are equal up to rounding, (l - eta) / s is rounding too
        return p / p.sum()
    index = (p > 0).flatten().nonzero()[:, 0]
    if not len(index):  # losses that are equal up to rounding, in a ball so large that their gap is rounding too
        index = (each > 0).flatten().nonzero()[:, 0]
    return _few(losses, each, index, float(c), float(total))


def _few(losses: Tensor, each: Tensor, index: Tensor, c: float, total: float) -> Tensor:
    """The same where not all pairs have weight: those of `index` may."""
    values, q = losses.flatten()[index].double(), each.flatten()[index].double() / total
    p = torch.zeros_like(losses)
    at_top = q * (values == values.amax())
    if c * at_top.sum() >= 1:  # the ball holds the vertex
        p.view(-1)[index] = (at_top / at_top.sum()).to(p.dtype)
        return p
    while True:
        Q = q.sum()
        past_mean = values - torch.dot(q, values) / Q
        above = past_mean + (torch.dot(q, past_mean.square()) / Q / (c * Q - 1).clamp_min(1e-15)).sqrt()
        inside = (above > 0).nonzero()[:, 0]
        if len(inside) == len(index):
            break
        index, values, q = index[inside], values[inside], q[inside]
    share = q * above
    p.view(-1)[index] = (share / share.sum()).to(p.dtype)
    return p


@chi2_weights.register_fake
def _(losses: Tensor, each: Tensor, rho: float, multiplicity: int) -> Tensor:
    return torch.empty_like(losses)
