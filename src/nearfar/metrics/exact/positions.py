"""Positions of the positives of each query, exactly as in a stable full sort, but usually computed without one.

Every retrieval metric is a function of the 1-based positions of a query's R positives in its ranking. With s_g the
similarity of the query to gallery sample g, the position of a positive p is

    position(p) = 1 + #{g < p : s_g >= s_p} + #{g > p : s_g > s_p}

This is its position in a stable descending sort: equal similarities are ordered by gallery index. Three methods give
the same numbers, and the one with the lowest estimated cost is used. `depth` is the largest position that the metrics
need:

- For few positives, count with this formula. This takes R passes over the similarities of the query.
- For many positives, look them up among the `depth` largest similarities of the query. If a positive is tied, use a
  stable sort for this query. Positions after `depth` are not needed: they are set to the constant BEYOND, except that
  of the best positive.
- If the positives are a large part of the gallery, sort all similarities of the query.

Gallery samples to leave out (the query itself and ignored samples) have similarity -inf and are not among the
positives.
"""

import numpy as np
import torch
from torch import Tensor

from nearfar.validation import Array, Ints

# position of padding, and of positives that are not among the `depth` nearest samples
BEYOND = np.int64(2**62)


def compute_positions(scores: Array, positives: Ints, depth: int) -> Ints:
    """Return the ascending 1-based positions [b, W] of the positives in the rankings of `scores` [b, N].

    Args:
        scores: Similarities of b queries to the gallery.
        positives: Gallery indices [b, W] of at most W positives per query, padded with -1. Padding has position BEYOND.
        depth: Positions larger than this may be returned as BEYOND, except the first position of a query.

    >>> row = np.array([[0.1, 0.9, 0.5, 0.9]], dtype=np.float32)
    >>> compute_positions(row, np.array([[3, 0]]), depth=4).tolist()
    [[2, 4]]
    """
    rows, gallery = scores.shape
    count = np.count_nonzero(positives >= 0) / rows
    # Estimated nanoseconds per query, from measurements on one core.
    costs = {
        count_positions: count * (3000 + 0.18 * gallery),
        select_positions: 50_000 / rows
        + 100 * count
        + (2 * gallery + 12 * depth if depth < gallery // 2 else 8 * gallery),
        sort_positions: 10_000 + 15 * gallery,
    }
    return min(costs, key=lambda method: costs[method])(scores, positives, depth)


def count_positions(scores: Array, positives: Ints, depth: int = 0) -> Ints:
    """Compute the position of every positive with the formula at the top of this module. `depth` is ignored."""
    positions = np.full(positives.shape, BEYOND)
    for i, indices in enumerate(positives.tolist()):
        for j, index in enumerate(indices):
            if index >= 0:
                positions[i, j] = _count(scores[i], index)
    positions.sort(axis=1)
    return positions


def select_positions(scores: Array, positives: Ints, depth: int) -> Ints:
    """Compute the positions up to `depth` by binary search in the `depth` largest similarities of each query."""
    gallery = scores.shape[1]
    cut = gallery - depth if depth < gallery // 2 else 0
    top = np.sort(np.partition(scores, cut, axis=1)[:, cut:] if cut else scores, axis=1)
    values = np.take_along_axis(scores, np.maximum(positives, 0), axis=1)
    table, needles = torch.from_numpy(top), torch.from_numpy(values)
    above = top.shape[1] - torch.searchsorted(table, needles, right=True).numpy()
    equal = top.shape[1] - torch.searchsorted(table, needles).numpy() - above
    inside = (values >= top[:, :1]) & (positives >= 0)
    positions: Ints = np.where(inside, 1 + above, BEYOND)
    # Samples outside the selection can have the smallest selected value too, so this value always counts as tied.
    tied = inside & ((equal > 1) | ((values == top[:, :1]) & (cut > 0)))
    has_tie = tied.any(axis=1)
    positions[has_tie] = sort_positions(scores[has_tie], positives[has_tie])
    values[positives < 0] = -np.inf
    for i in np.flatnonzero((positions == BEYOND).all(axis=1) & (positives >= 0).any(axis=1)):
        best = np.lexsort((positives[i], -values[i]))[0]
        positions[i, best] = _count(scores[i], positives[i, best])
    positions.sort(axis=1)
    return positions


def sort_positions(scores: Array, positives: Ints, depth: int = 0) -> Ints:
    """Compute all positions by a stable sort of each query's similarities; `depth` is ignored."""
    positions = np.full(positives.shape, BEYOND)
    for row, indices, out in zip(scores, positives, positions, strict=True):
        relevant = np.zeros(len(row), dtype=bool)
        relevant[indices[indices >= 0]] = True
        hits = np.flatnonzero(relevant[stable_order(row)])
        out[: len(hits)] = 1 + hits
    return positions


def sort_positions_on_device(scores: Tensor, positives: Tensor) -> Tensor:
    """Compute all positions by a stable sort of the whole block, which is fast on an accelerator."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    numbers = torch.arange(1, order.shape[1] + 1, device=order.device).expand_as(order)
    positions = torch.empty_like(order).scatter_(1, order, numbers)
    return positions.gather(1, positives.clamp_min(0)).masked_fill_(positives < 0, int(BEYOND)).sort(dim=1).values


def stable_order(row: Array) -> Ints:
    """Return what `np.argsort(-row, kind="stable")` returns, but faster for float32.

    If the lower 31 bits of negative float32 numbers are flipped, the bit patterns, read as int32, sort in the order of
    the numbers. Pattern and index are packed into one int64, so that all keys are distinct and any sort is stable.

    >>> stable_order(np.array([0.5, 1.0, 0.5], dtype=np.float32)).tolist()
    [1, 0, 2]
    """
    if row.dtype != np.float32:
        return np.argsort(-row, kind="stable")
    bits = (0.0 - row).view(np.int32)  # 0.0 - x maps 0.0 and -0.0 to the same bits, because they must tie
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)
    keys: Ints = (bits.astype(np.int64) << 32) | np.arange(len(row))
    keys.sort()
    return keys & 0xFFFFFFFF


def _count(row: Array, index: int) -> int:
    value = row[index]
    return 1 + int(np.count_nonzero(row[:index] >= value)) + int(np.count_nonzero(row[index + 1 :] > value))
