"""Means over all triplets (anchor, positive, negative), computed from the similarity matrix.

The cost of a triplet is phi(t) with t = margin + slope (sim_an - sim_ap), where phi is a function such as the hinge.
A batch of B samples has up to B^3 triplets, so they are not enumerated. Memory is O(B^2). Time is O(B^2 P) for P
positives per anchor: one pass over the matrix per positive. The hinge with many positives takes O(B^2 log P) instead:
the positives of each anchor are sorted, and each negative is located among them by binary search.

In the shapes, A is the number of anchors, R the number of references, and P the largest number of positives of an
anchor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.host_reads import is_on_host
from nearfar.ops.custom_grad import analytic
from nearfar.ops.pairs import row_count, softplus, to_one

# With at least this many positives per anchor, sorting is faster than one pass per positive (measured with batches of
# 640 and 2048 samples).
SORT_FROM = 64
# Several positives are processed at once as long as their [A, R] matrices have at most this many entries in total.
AT_ONCE = 2**17


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
    """Compute the weighted mean of phi(margin + slope (sim_an - sim_ap)) over all triplets (a, p, n).

    The weight of a triplet is the product of the weights of its three samples. The function body returns the mean and
    its gradient with respect to sim. The decorator turns it into an operator that returns only the mean.

    Args:
        sim: The similarities [A, R].
        same: The mask of the positives [A, R].
        diff: The mask of the negatives [A, R].
        weights: The weights of the anchors [A], or None if all are 1.
        ref_weights: The weights of the references [R], or None if all are 1.
        margin: The margin.
        slope: The factor by which similarity differences are multiplied.
        term: The function phi: "hinge" is max(0, t), "softplus" is log(1 + e^t), and "rescaled" is
            (1 - e^{-eta max(0, t)}) / (1 - e^{-eta}).
        eta: The parameter of "rescaled". The other terms ignore it.
        nonzero: If True, divide by the total weight of the triplets with phi > 0; otherwise by that of all triplets.
    """
    counts = row_count(same)
    # On a GPU, sorting all columns is faster than making the host wait for the largest number of positives.
    sorts_all = term == "hinge" and not is_on_host(sim)
    positive, columns = positive_table(sim, same, count=sim.shape[1] if sorts_all else int(counts.max()))
    if columns.shape[1] == 0:
        return sim.new_zeros(()), torch.zeros_like(sim)
    negative = torch.where(diff, sim, -torch.inf).mul_(slope).add_(margin)
    threshold = slope * positive
    w_a, w_p, ref_weights = _triplet_weights(threshold, columns, weights, ref_weights)
    if term == "hinge" and (columns.shape[1] >= SORT_FROM or not is_on_host(sim)):
        value, active, gradient = _sorted_hinges(negative, threshold, columns, w_p, ref_weights)
    else:
        value, active, gradient = _pass_per_positive(negative, threshold, columns, w_p, ref_weights, term, eta, nonzero)
    divisor = active if nonzero else _total_weight(counts, same, diff, w_a, ref_weights)
    # without weights, the divisor is a number of triplets
    divisor = divisor.clamp_min(1) if w_p is None else torch.where(divisor > 0, divisor, 1.0)
    divisor = divisor.to(sim.dtype)
    return value.to(sim.dtype) / divisor, gradient.mul_(slope / divisor)


@torch.library.custom_op("nearfar::semi_hard_negatives", mutates_args=())
def semi_hard_negatives(sim: Tensor, same: Tensor, diff: Tensor) -> Tensor:
    """Return the column of the semi-hard negative of every positive pair, [A, R].

    The semi-hard negative of (a, p) is the closest negative of a that is strictly farther from a than p. If a positive
    pair has no semi-hard negative, its entry is -1. Entries that are not positive pairs are -1 too.
    """
    count = int(row_count(same).max()) if is_on_host(sim) else None
    if count is None or count >= SORT_FROM:
        # Sort the negatives, closest first. Those before the insertion position of a positive are at least as close as
        # the positive, so the negative at that position is the semi-hard one.
        nearest_first, order = torch.where(diff, -sim, torch.inf).sort(dim=1, stable=True)
        place = torch.searchsorted(nearest_first, -sim, right=True)
        exists = same & (place < row_count(diff)[:, None])
        return torch.where(exists, order.gather(1, place.clamp_max(sim.shape[1] - 1)), -1)
    chosen = torch.full_like(sim, -1, dtype=torch.int64)
    positive, columns = positive_table(sim, same, count=count)
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


def positive_table(sim: Tensor, same: Tensor, *, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the similarities and the columns of each anchor's positives, farthest first, both [A, P].

    P is `count`, by default the largest number of positives of an anchor. Rows with fewer positives are padded: the
    similarities with +inf, the columns with arbitrary indices. P is part of a shape, so without `count`, the host must
    read it and wait for the GPU, if the tensors are on one.
    """
    if count is None:
        count = int(row_count(same).max())
    return torch.topk(torch.where(same, sim, torch.inf), count, dim=1, largest=False, sorted=True)


def positives_at_once(sim: Tensor, positives: int) -> int:
    """Return how many positives of each anchor a loop over positives should process at once.

    For small batches, an operation takes longer to start than to run, so one pass over all positives is faster than
    one pass per positive. For large batches, the [A, R] matrix of a single positive already fills the caches.
    """
    return max(1, min(positives, AT_ONCE // sim.numel()))


def anchor_shares(same: Tensor, weights: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the mask of the anchors with positives [A], and the weight of each anchor in a mean over them [A].

    The weights of the anchors with positives are scaled so that their sum is 1, unless all of them are 0. The other
    anchors have weight 0.
    """
    has = same.any(1)
    share = has.to(dtype) if weights is None else torch.where(has, weights, 0.0)
    total = share.sum()
    return has, share / torch.where(total > 0, total, 1.0)


def _triplet_weights(
    threshold: Tensor, columns: Tensor, weights: Tensor | None, ref_weights: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the weights of the anchors [A], of anchor times positive [A, P], and of the references [R].

    `threshold` and `columns` [A, P] are those of `_pass_per_positive`. A mean depends only on ratios of weights, so
    they are scaled to at most 1, and their products do not overflow. Without weights, the first two results are None.
    A result for the references is None if they have no weights.
    """
    if weights is None and ref_weights is None:
        return None, None, None
    w_a = torch.ones_like(threshold[:, 0]) if weights is None else to_one(weights)
    w_p = torch.isfinite(threshold).to(threshold.dtype)
    if ref_weights is not None:
        ref_weights = to_one(ref_weights)
        w_p = torch.where(w_p > 0, ref_weights[columns], 0.0)
    return w_a, w_p * w_a[:, None], ref_weights


def _pass_per_positive(
    negative: Tensor,
    threshold: Tensor,
    columns: Tensor,
    w_p: Tensor | None,
    ref_weights: Tensor | None,
    term: str,
    eta: float,
    nonzero: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the weighted sum of phi(t) with t = negative_n - threshold_p over all triplets, a few positives at once.

    Buffers are reused, because allocating an [A, R] matrix takes longer than the arithmetic on it.

    Args:
        negative: margin + slope sim_an [A, R]; -inf where the reference is not a negative.
        threshold: slope sim_ap of the positives [A, P], sorted; +inf in the padding, so that phi is 0 there.
        columns: The columns of the positives [A, P].
        w_p: The product of the weights of anchor and positive [A, P]; 0 in the padding. None if all weights are 1.
        ref_weights: The weights of the references [R], or None if all are 1.
        term: See `mean_over_triplets`.
        eta: See `mean_over_triplets`.
        nonzero: If True, also compute the total weight of the terms above 0.

    Returns:
        The sum, the total weight of the terms above 0 (0 unless `nonzero`), and the gradient of the sum with respect to
        slope sim [A, R].
    """
    gradient: Tensor | None = None
    width = positives_at_once(negative, columns.shape[1])
    buffers = torch.empty(2, len(negative), width, negative.shape[1], dtype=negative.dtype, device=negative.device)
    value = torch.zeros((), dtype=torch.float64, device=negative.device)
    active = torch.zeros_like(value)
    for start in range(0, columns.shape[1], width):
        k = slice(start, start + width)
        w_k = None if w_p is None else w_p[:, k]
        t, slopes = buffers[:, :, : threshold[:, k].shape[1]]
        torch.sub(negative[:, None], threshold[:, k, None], out=t)
        if term == "softplus":
            torch.sigmoid(t, out=slopes)
            t = softplus(t)
        else:
            torch.sign(t.clamp_min_(0), out=slopes)
        if nonzero:
            active += _weighted_sum(slopes if term != "softplus" else t.sign(), w_k, ref_weights)
        if term == "rescaled":
            # For t > 0, phi = expm1(-eta t) / expm1(-eta), and its derivative is -eta e^{-eta t} / expm1(-eta).
            t.mul_(-eta).expm1_()
            slopes.addcmul_(slopes, t).mul_(-eta / math.expm1(-eta))
            t.div_(math.expm1(-eta))
        value += _weighted_sum(t, w_k, ref_weights)
        if ref_weights is not None:
            slopes.mul_(ref_weights)
        if w_k is not None:
            slopes.mul_(w_k[:, :, None])
        if gradient is None:
            gradient = slopes.sum(1)
        else:
            gradient.add_(slopes[:, 0] if width == 1 else slopes.sum(1))
        gradient.scatter_add_(1, columns[:, k], slopes.sum(2).neg_())
    assert gradient is not None  # there is at least one positive
    return value, active, gradient


def _sorted_hinges(
    negative: Tensor, threshold: Tensor, columns: Tensor, w_p: Tensor | None, ref_weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the same as `_pass_per_positive` for the hinge, in O(log P) per negative.

    A triplet is active if its hinge is above 0. The thresholds of each anchor are sorted in ascending order, so the
    positives that are active for a negative n are the first k_n in the row of its anchor, and binary search finds k_n.
    Cumulative sums over the positives, read at k_n, give the cost of each negative. Conversely, the active negatives of
    the j-th positive are those with k_n >= j. A cumulative sum of the negatives' weights in order of k_n gives their
    total weight.
    """
    w_n = torch.ones_like(negative) if ref_weights is None else ref_weights.expand_as(negative)
    w_p = torch.isfinite(threshold).to(threshold.dtype) if w_p is None else w_p
    k = torch.searchsorted(threshold, negative)
    running_w = torch.nn.functional.pad(w_p.cumsum(1), (1, 0))
    running_t = torch.nn.functional.pad((w_p * torch.where(w_p > 0, threshold, 0.0)).cumsum(1), (1, 0))
    active_p = running_w.gather(1, k)  # for each negative: total weight of its active positives
    costs = active_p * torch.where(active_p > 0, negative, 0.0) - running_t.gather(1, k)
    places = torch.zeros_like(running_w).scatter_add_(1, k, w_n)
    active_n = places.flip(1).cumsum(1).flip(1)[:, 1:]  # for each positive: weight of its active negatives
    value, active = ((part * w_n).sum(dtype=torch.float64) for part in (costs, active_p))
    return value, active, (active_p * w_n).scatter_add_(1, columns, -w_p * active_n)


def _total_weight(counts: Tensor, same: Tensor, diff: Tensor, w_a: Tensor | None, ref_weights: Tensor | None) -> Tensor:
    """Compute the total weight of all triplets.

    This is the sum over anchors of the anchor's weight times the total weight of its positives times the total weight
    of its negatives. `counts` [A] are the numbers of positives. Weights that are None are 1.
    """
    if ref_weights is None:
        triplets = counts.double() if w_a is None else counts * w_a.double()
        return triplets @ row_count(diff).double()
    r = ref_weights.double()
    total = (same.to(r.dtype) @ r) * (diff.to(r.dtype) @ r)
    return (total if w_a is None else total * w_a).sum()


def _weighted_sum(values: Tensor, w_p: Tensor | None, ref_weights: Tensor | None) -> Tensor:
    """Compute the sum of values [A, P, R], weighted by w_p [A, P] and by the weights of the references, in float64."""
    sums = values.sum(2) if ref_weights is None else values @ ref_weights
    return sums.sum(dtype=torch.float64) if w_p is None else (sums.double() * w_p).sum()
