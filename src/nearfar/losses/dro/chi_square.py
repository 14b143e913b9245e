"""The chi-square uncertainty set.

For small rho, the robust value is the mean loss plus a multiple of the standard deviation of the losses.
"""

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
    """The chi-square ball around uniform weights (Qi et al., arXiv 1912.11194, the equation below Eq. 1).

    See also Namkoong and Duchi, NeurIPS 2017. The weights p maximize sum_i p_i l_i for the losses l of the n unordered
    pairs, subject to p >= 0, sum_i p_i = 1 and sum_i (n p_i - 1)^2 <= 2 rho. The last constraint is equivalent to
    D(p || uniform) <= rho / n, where D is the phi-divergence with phi(t) = (t - 1)^2 / 2. Pairs with loss 0 are
    included. If pairs have weights w, n is the sum of the weights, and w / n replaces the uniform weights.

    There are three cases:

    - If the solution without the constraint p >= 0 has no negative weight, it is
      n p_i = 1 + sqrt(2 rho / n) (l_i - mean(l)) / sd(l), and the maximum is mean(l) + sqrt(2 rho Var(l) / n). The
      variance has the divisor n, and sd is its square root.
    - If rho is so large that the constraints allow all weight on the pair with the largest loss, this pair gets all
      weight. If several pairs have the largest loss, they share the weight.
    - Otherwise p_i is proportional to [l_i - eta]_+ for a threshold eta, which is computed exactly.

    Args:
        rho: The size of the ball. The default is our choice; the paper has no experiment with this set.

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


# The tag is needed because the function copies values to the host, which a CUDA graph cannot record.
@torch.library.custom_op("nearfar::chi2_weights", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def chi2_weights(losses: Tensor, mass: Tensor, rho: float, multiplicity: int) -> Tensor:
    """Compute the weights p that maximize sum p l for losses l, subject to p >= 0, sum p = 1 and sum q (p/q)^2 <= c.

    Here q = mass / sum mass, n = sum mass / multiplicity and c = 1 + 2 rho / n. Unless the constraints allow all weight
    on the largest loss, the solution is p = q [l - eta]_+ / s with a threshold eta and a divisor s. Let Q be the total
    q of the pairs with l > eta, and M and V the mean and the variance of their losses, weighted by q. The constraints
    then give (M - eta)^2 = V / (c Q - 1) and s = Q (M - eta). eta is found by iteration: start with all pairs, compute
    eta, remove the pairs with l <= eta, and repeat until no pair is removed. This usually takes a few rounds and needs
    no sorting. The function is an opaque operator for torch.compile, because the number of remaining pairs depends on
    the losses.

    Args:
        losses: The losses [A, R] of A anchors, each compared with R samples.
        mass: The weights of the entries [A, R]; 0 for entries that are not pairs.
        rho: The size of the ball.
        multiplicity: The number of entries per pair; see `entries_per_pair`.

    Returns:
        p [A, R].
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
        # Divide by the actual sum instead of the divisor s in the docstring. If all losses are equal up to rounding, s
        # is mostly rounding error.
        return p / p.sum()
    index = (p > 0).flatten().nonzero()[:, 0]
    if not len(index):  # all losses are equal up to rounding, and none is above the rounded threshold eta
        index = (mass > 0).flatten().nonzero()[:, 0]
    return _shrink_support(losses, mass, index, float(c), float(total))


def _shrink_support(losses: Tensor, mass: Tensor, index: Tensor, c: float, total: float) -> Tensor:
    """Compute the weights p [A, R] if only the pairs in `index` can have weight above 0; see `chi2_weights`.

    Args:
        losses: The losses [A, R].
        mass: The weights of the entries [A, R].
        index: The remaining entries, as indices into the flattened matrix.
        c: The bound in the constraint sum q (p/q)^2 <= c.
        total: The sum of `mass`.
    """
    values, q = losses.flatten()[index].double(), mass.flatten()[index].double() / total
    p = torch.zeros_like(losses)
    at_top = q * (values == values.amax())
    if c * at_top.sum() >= 1:  # the ball contains the point with all weight on the largest loss
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
