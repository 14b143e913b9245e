"""The chi-square uncertainty set, whose worst case is the mean loss plus a multiple of its standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.losses.dro.uncertainty import UncertaintySet, entries_per_pair, register
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_positive


@register("chi2")
@dataclass(frozen=True)
class ChiSquare(UncertaintySet):
    """The variance-regularized ball (Qi et al., the equation below Eq. 1; Namkoong and Duchi, NeurIPS 2017).

    max_p sum p l over p >= 0, sum p = 1 with D(p || uniform) <= rho / n. n is the number of unordered pairs (with
    weights the sum of their weights, and uniform is w / n). D is the divergence of phi(t) = (t - 1)^2 / 2, so the
    constraint is sum_i (n p_i - 1)^2 <= 2 rho. Pairs of loss 0 count.

    If no p_i would be negative, the maximum is mean(l) + sqrt(2 rho Var(l) / n), Var the plain variance (divided by
    n): n p_i = 1 + sqrt(2 rho / n) (l_i - mean) / sd. Otherwise p_i is proportional to [l_i - eta]_+, with eta found
    exactly. If the ball contains the point with all weight on the largest loss (or equally on several), p is that.

    Args:
        rho: The size of the ball. 1 is ours: the paper has no experiment with this set.

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> ChiSquare(rho=0.25)(torch.tensor([[3.0, 1.0]]), pairs)  # mean 2, sd 1, n = 2: n p = 1 +- 1/2
    tensor([[0.7500, 0.2500]])
    """

    rho: float = 1.0

    def __post_init__(self) -> None:
        check_positive("rho", self.rho)

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        mass = pairs.mass(pairs.same | pairs.diff)
        p: Tensor = chi2_weights(losses, mass, self.rho, entries_per_pair(pairs))
        return p


@torch.library.custom_op("nearfar::chi2_weights", mutates_args=())
def chi2_weights(losses: Tensor, mass: Tensor, rho: float, multiplicity: int) -> Tensor:
    """Compute the p that maximizes sum p l with sum q (p/q)^2 <= c = 1 + 2 rho / n, q = mass / sum mass.

    p = q [l - eta]_+ / s. For a set of pairs above eta, with q-mass Q, mean M and variance V of their losses, sum p = 1
    and the ball give (M - eta)^2 = V / (c Q - 1), s = Q (M - eta). If all pairs are above their eta, this is the closed
    form. Otherwise the pairs at or below eta are removed, eta rises, and the set shrinks until no pair is removed. This
    takes a few rounds on few pairs and no sort. It is an opaque operator because the number of pairs depends on the
    losses.
    """
    total = mass.sum().double()
    if total == 0:
        return torch.zeros_like(losses)
    c = 1 + 2 * rho * multiplicity / total
    past_mean = losses - (mass * losses).sum().double() / total
    gap = ((past_mean.square() * mass).sum().double() / total / (c - 1)).sqrt()
    if gap == 0:
        return mass / total
    p = mass * (past_mean + gap)
    if p.amin() >= 0:
        # Divide by the sum: if all losses are equal up to rounding, (l - eta) / s is rounding error too.
        return p / p.sum()
    index = (p > 0).flatten().nonzero()[:, 0]
    if not len(index):  # the losses are equal up to rounding, and the ball is so large that the gap is rounding error
        index = (mass > 0).flatten().nonzero()[:, 0]
    return _shrink_support(losses, mass, index, float(c), float(total))


def _shrink_support(losses: Tensor, mass: Tensor, index: Tensor, c: float, total: float) -> Tensor:
    """Compute p where only some of the pairs in `index` have weight."""
    values, q = losses.flatten()[index].double(), mass.flatten()[index].double() / total
    p = torch.zeros_like(losses)
    at_top = q * (values == values.amax())
    if c * at_top.sum() >= 1:  # the ball contains the vertex
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
def _(losses: Tensor, mass: Tensor, rho: float, multiplicity: int) -> Tensor:
    return torch.empty_like(losses)
