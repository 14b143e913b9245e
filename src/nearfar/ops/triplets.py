"""Means over all triplets (anchor, positive, negative), computed from the similarity matrix.

A triplet costs phi(t) with t = margin + slope (sim_an - sim_ap). A batch of B samples has up to B^3 triplets; they are
never listed. The time is O(B^2 P) for P positives per anchor, in passes over one buffer. A hinge with many positives
takes O(B^2 log P): the positives of each anchor are sorted, and each negative is located among them by bisection. The
memory is O(B^2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.ops.custom_grad import analytic
from nearfar.ops.pairs import row_count, to_one

# From this many positives per anchor on, sorting is faster than a pass per positive (measured at B = 640 and 2048).
SORT_FROM = 64


@analytic("mean_over_triplets")
def mean_over_triplets(
    sim: Tensor,
    same: Tensor,
    diff: Tensor,
    weights: Tensor | None,
    ref_weights: Tensor | None,
    margin: float,
    slope: float,
    term: str,
    eta: float,
    nonzero: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the weighted mean of phi(margin + slope (sim_an - sim_ap)) over all triplets.

    Return it and its gradient with respect to sim. The weight of a triplet is the product of its sample weights.

    Args:
        sim: The similarities [A, R].
        same: The mask of the positives [A, R].
        diff: The mask of the negatives [A, R].
        weights: The weights of the anchors [A].
        ref_weights: The weights of the references [R].
        margin: The margin.
        slope: The factor of the similarities.
        term: "hinge" max(0, t), "softplus" log(1 + e^t), or "rescaled" b (1 - e^{-eta max(0, t)}), b = 1/(1 -
            e^{-eta}).
        eta: The parameter of "rescaled".
        nonzero: Divide by the number of triplets with phi > 0 instead of all.
    """
    positive, columns = positive_table(sim, same)
    if columns.shape[1] == 0:
        return sim.new_zeros(()), torch.zeros_like(sim)
    negative = torch.where(diff, sim, -torch.inf).mul_(slope).add_(margin)
    threshold = slope * positive
    # A mean depends only on ratios of weights. Scaled to at most 1, their products neither underflow nor overflow.
    w_a = torch.ones_like(sim[:, 0]) if weights is None else to_one(weights)
    ref_weights = None if ref_weights is None else to_one(ref_weights)
    w_p = torch.isfinite(threshold).to(sim.dtype)
    if ref_weights is not None:
        w_p = torch.where(w_p > 0, ref_weights[columns], 0.0)
    w_p *= w_a[:, None]
    if term == "hinge" and columns.shape[1] >= SORT_FROM:
        value, active, gradient = _sorted_hinges(negative, threshold, columns, w_p, ref_weights)
    else:
        value, active, gradient = _pass_per_positive(negative, threshold, columns, w_p, ref_weights, term, eta, nonzero)
    divisor = active if nonzero else _total_weight(same, diff, w_a, ref_weights)
    divisor = torch.where(divisor > 0, divisor, 1.0).to(sim.dtype)
    return value.to(sim.dtype) / divisor, gradient.mul_(slope / divisor)


@torch.library.custom_op("nearfar::semi_hard_negatives", mutates_args=())
def semi_hard_negatives(sim: Tensor, same: Tensor, diff: Tensor) -> Tensor:
    """Return, at each positive [A, R], the column of the closest negative that is strictly farther; -1 elsewhere."""
    chosen = torch.full_like(sim, -1, dtype=torch.int64)
    positive, columns = positive_table(sim, same)
    if columns.shape[1] >= SORT_FROM:
        # Sort the negatives, closest first; those before the position of a positive are at least as close.
        nearest_first, order = torch.where(diff, -sim, torch.inf).sort(dim=1, stable=True)
        place = torch.searchsorted(nearest_first, -sim, right=True)
        exists = same & (place < row_count(diff)[:, None])
        return torch.where(exists, order.gather(1, place.clamp_max(sim.shape[1] - 1)), -1)
    negative = torch.where(diff, sim, -torch.inf)
    for k in range(columns.shape[1]):
        closest, n = torch.where(negative < positive[:, k : k + 1], negative, -torch.inf).max(1, keepdim=True)
        exists = (closest > -torch.inf) & torch.isfinite(positive[:, k : k + 1])
        column = columns[:, k : k + 1]
        chosen.scatter_(1, column, torch.where(exists, n, chosen.gather(1, column)))
    return chosen


@semi_hard_negatives.register_fake
def _(sim: Tensor, same: Tensor, diff: Tensor) -> Tensor:
    return torch.empty_like(sim, dtype=torch.int64)


def positive_table(sim: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return the similarities and columns of each anchor's positives, farthest first, both [A, P], P the largest count.

    An anchor with fewer positives has +inf in the remaining places; their columns are arbitrary.
    """
    count = int(row_count(same).max())
    return torch.topk(torch.where(same, sim, torch.inf), count, dim=1, largest=False, sorted=True)


def _pass_per_positive(
    negative: Tensor,
    threshold: Tensor,
    columns: Tensor,
    w_p: Tensor,
    ref_weights: Tensor | None,
    term: str,
    eta: float,
    nonzero: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the sum of w phi(negative_n - threshold_p), the weight of its non-zero terms, and its gradient.

    w_p [A, P] is the weight of anchor and positive, 0 in empty places. An empty place has threshold +inf, so t = -inf
    and phi = 0. Buffers are reused: allocating an [A, R] matrix takes longer than the arithmetic on it.
    """
    gradient = torch.zeros_like(negative)
    t, slopes = torch.empty_like(negative), torch.empty_like(negative)
    rows, active = (torch.zeros_like(threshold, dtype=torch.float64) for _ in range(2))
    for k in range(columns.shape[1]):
        torch.sub(negative, threshold[:, k : k + 1], out=t)
        if term == "softplus":
            torch.sigmoid(t, out=slopes)
            _softplus_(t)
        else:
            torch.sign(t.clamp_min_(0), out=slopes)
        if nonzero:
            active[:, k] = _row_sum(slopes if term != "softplus" else t.sign(), ref_weights)
        if term == "rescaled":
            # phi = expm1(-eta t) / expm1(-eta), phi' = -eta e^{-eta t} / expm1(-eta) where t > 0
            t.mul_(-eta).expm1_()
            slopes.addcmul_(slopes, t).mul_(-eta / math.expm1(-eta))
            t.div_(math.expm1(-eta))
        rows[:, k] = _row_sum(t, ref_weights)
        if ref_weights is not None:
            slopes.mul_(ref_weights)
        w = w_p[:, k : k + 1]
        gradient.addcmul_(slopes, w)
        gradient.scatter_add_(1, columns[:, k : k + 1], -w * slopes.sum(1, keepdim=True))
    return (rows * w_p).sum(), (active * w_p).sum(), gradient


def _softplus_(t: Tensor) -> None:
    """Compute log(1 + e^t) = max(t, 0) + log(1 + e^{-|t|}) in place, which does not overflow for large t."""
    tail = t.abs().neg_().exp_().log1p_()
    t.clamp_min_(0).add_(tail)


def _sorted_hinges(
    negative: Tensor, threshold: Tensor, columns: Tensor, w_p: Tensor, ref_weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the same as `_pass_per_positive` for hinges, in O(log P) per negative.

    Thresholds are sorted, so the active positives of a negative are the first k_n of them. k_n, found by bisection,
    gives both sums: over positives by running totals, over negatives by counting the negatives with each k_n.
    """
    w_n = torch.ones_like(negative) if ref_weights is None else ref_weights.expand_as(negative)
    k = torch.searchsorted(threshold, negative)
    running_w = torch.nn.functional.pad(w_p.cumsum(1), (1, 0))
    running_t = torch.nn.functional.pad((w_p * torch.where(w_p > 0, threshold, 0.0)).cumsum(1), (1, 0))
    active_p = running_w.gather(1, k)  # for each negative, the weight of its active positives
    costs = active_p * torch.where(active_p > 0, negative, 0.0) - running_t.gather(1, k)
    places = torch.zeros_like(running_w).scatter_add_(1, k, w_n)
    active_n = places.flip(1).cumsum(1).flip(1)[:, 1:]  # for each positive, the weight of its active negatives
    value, active = ((part * w_n).sum(dtype=torch.float64) for part in (costs, active_p))
    return value, active, (active_p * w_n).scatter_add_(1, columns, -w_p * active_n)


def _total_weight(same: Tensor, diff: Tensor, w_a: Tensor, ref_weights: Tensor | None) -> Tensor:
    """Compute the weight of all triplets, the sum over anchors of w_a (weight of positives) (weight of negatives)."""
    if ref_weights is None:
        return row_count(same).double() @ row_count(diff).double()
    r = ref_weights.double()
    return ((same.to(r.dtype) @ r) * (diff.to(r.dtype) @ r) * w_a).sum()


def _row_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.sum(1) if weights is None else values @ weights
