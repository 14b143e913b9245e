"""Means over all triplets (anchor, positive, negative), read off the similarity matrix.

A triplet costs phi(t) with t = margin + slope (sim_an - sim_ap). With B samples there are up to B^3 of them; none is
ever listed. Time is O(B^2 P) for P positives an anchor, by passes over one buffer; a hinge with many positives is
summed in O(B^2 log P) by sorting each anchor's positives and finding every negative's place among them. Memory is
O(B^2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.analytic import analytic

# Above this many positives an anchor, sorting them beats a pass for each (measured at B = 640 and 2048).
SORT_FROM = 48


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
    mining: str,
    nonzero: bool,
) -> tuple[Tensor, Tensor]:
    """Weighted mean of phi(margin + slope (sim_an - sim_ap)), and its gradient by sim.

    term: "hinge" max(0, t), "softplus" log(1 + e^t), or "rescaled" b (1 - e^{-eta max(0, t)}) with b = 1/(1 -
    e^{-eta}). mining: "all" triplets, or "semi-hard": for each (a, p) the nearest negative strictly farther than p.
    nonzero: the divisor counts only triplets with phi > 0. A triplet's weight is the product of its samples'.
    """
    gradient = torch.zeros_like(sim)
    table, positives = positive_table(sim, same)
    if positives.shape[1] == 0:
        return sim.new_zeros(()), gradient
    negative = torch.where(diff, slope * sim + margin, -torch.inf)
    w_a = None if weights is None else weights[:, None]
    total, active, triplets = (sim.new_zeros((), dtype=torch.float64) for _ in range(3))

    if term == "hinge" and mining == "all" and positives.shape[1] >= SORT_FROM:
        total, active = _sorted_hinge(negative, slope * table, positives, weights, ref_weights, slope, gradient)
        triplets = _all_triplets(same, diff, weights, ref_weights)
    else:
        t, slopes = torch.empty_like(sim), torch.empty_like(sim)
        for k in range(positives.shape[1]):
            column = positives[:, k : k + 1]
            there = torch.isfinite(table[:, k : k + 1])
            threshold = torch.where(there, slope * table[:, k : k + 1], torch.inf)
            if mining == "semi-hard":
                farther = sim < table[:, k : k + 1]
                nearest, chosen = torch.where(farther, negative, -torch.inf).max(1, keepdim=True)
                t, slopes = nearest - threshold, torch.empty_like(nearest)
            else:
                torch.sub(negative, threshold, out=t)
                chosen = None
            exists = t > -torch.inf if mining == "semi-hard" else None
            _phi(term, eta, t, slopes)
            w = w_a if ref_weights is None else w_a * ref_weights[column]  # type: ignore[operator]
            w_n = None if ref_weights is None else (ref_weights if chosen is None else ref_weights[chosen])
            total += _weighted(_row_sum(t, w_n), w)
            if nonzero:
                active += _weighted(_row_sum((t > 0).to(t.dtype), w_n), w)
            if exists is not None:
                triplets += _weighted(_row_sum(exists.to(t.dtype), w_n), w)
            if w_n is not None:
                slopes *= w_n
            if w is not None:
                slopes *= w
            if chosen is None:
                gradient += slopes
            else:
                gradient.scatter_add_(1, chosen, slopes)
            gradient.scatter_add_(1, column, -slopes.sum(1, keepdim=True))
        gradient *= slope
        if mining == "all":
            triplets = _all_triplets(same, diff, weights, ref_weights)
    divisor = (active if nonzero else triplets).to(sim.dtype)
    divisor = torch.where(divisor > 0, divisor, 1.0)
    return total.to(sim.dtype) / divisor, gradient / divisor


def positive_table(sim: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Similarities and columns of each anchor's positives, the farthest first: both [A, P], P the largest count.

    An anchor with fewer has +inf in the places that are left, with a column that must not be used for anything but
    adding zero.
    """
    count = int(same.sum(1).max()) if same.numel() else 0
    masked = torch.where(same, sim, torch.inf)
    return torch.topk(masked, count, dim=1, largest=False, sorted=True)


def _phi(term: str, eta: float, t: Tensor, slopes: Tensor) -> None:
    """Replace t by phi(t) and fill slopes with phi'(t), in place."""
    if term == "softplus":
        torch.sigmoid(t, out=slopes)
        tail = t.abs().neg_().exp_().log1p_()
        t.clamp_min_(0).add_(tail)
        return
    t.clamp_min_(0)
    torch.sign(t, out=slopes)
    if term == "rescaled" and eta > 0:
        scale = -1 / math.expm1(-eta)
        t.mul_(-eta)
        slopes *= t.exp().mul_(eta * scale)
        t.expm1_().mul_(-scale)


def _sorted_hinge(
    negative: Tensor,
    threshold: Tensor,
    columns: Tensor,
    weights: Tensor | None,
    ref_weights: Tensor | None,
    slope: float,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sum of max(0, negative_n - threshold_p) over all (p, n) of each row, and the weight of its non-zero terms.

    Thresholds are sorted, so the positives that are active for a negative are the first k_n of them, and k_n, found by
    bisection, gives both sums: over positives by running totals, over negatives by counting how many have each k_n.
    """
    there = torch.isfinite(threshold)
    w_p = there.to(negative.dtype) if ref_weights is None else torch.where(there, ref_weights[columns], 0.0)
    zero = negative.new_zeros(len(negative), 1)
    k = torch.searchsorted(threshold, negative)
    running_w = torch.cat([zero, w_p.cumsum(1)], 1)
    running_t = torch.cat([zero, (w_p * torch.where(there, threshold, 0.0)).cumsum(1)], 1)
    active_p = running_w.gather(1, k)  # for each negative, the weight of its active positives
    cost = active_p * torch.where(active_p > 0, negative, 0.0) - running_t.gather(1, k)
    w_n = torch.ones_like(negative) if ref_weights is None else ref_weights.expand_as(negative)
    places = torch.zeros_like(running_w).scatter_add_(1, k, w_n)
    active_n = places.flip(1).cumsum(1).flip(1)[:, 1:]  # for each positive, the weight of its active negatives
    w_a = 1.0 if weights is None else weights[:, None]
    gradient += slope * w_a * w_n * active_p
    gradient.scatter_add_(1, columns, -slope * w_a * w_p * active_n)
    rows = (cost * w_n).sum(1, dtype=torch.float64)
    rows_active = (active_p * w_n).sum(1, dtype=torch.float64)
    if weights is not None:
        rows, rows_active = rows * weights, rows_active * weights
    return rows.sum(), rows_active.sum()


def _all_triplets(same: Tensor, diff: Tensor, weights: Tensor | None, ref_weights: Tensor | None) -> Tensor:
    """The summed weight of all triplets: per anchor (weight of positives) x (weight of negatives)."""
    if ref_weights is None or weights is None:
        return (same.sum(1) * diff.sum(1)).sum().to(torch.float64)
    r = ref_weights.to(torch.float64)
    return ((same.to(r.dtype) @ r) * (diff.to(r.dtype) @ r) * weights).sum()


def _row_sum(values: Tensor, column_weights: Tensor | None) -> Tensor:
    if column_weights is None:
        return values.sum(1, keepdim=True)
    return (values * column_weights).sum(1, keepdim=True)


def _weighted(rows: Tensor, w: Tensor | None) -> Tensor:
    return (rows if w is None else rows * w).sum(dtype=torch.float64)
