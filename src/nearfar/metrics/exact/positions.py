"""Ranks of the positives of each query, exactly those of a stable full sort, mostly without one.

Every retrieval metric is a function of the ranks of a query's R positives, and

    rank(p) = 1 + #{g < p : s_g >= s_p} + #{g > p : s_g > s_p}

is what a stable descending sort gives (ties rank by gallery position). Three ways to the same numbers, by their cost:
few positives are counted by this formula, R passes over a row that is in cache; many are looked up among the `depth`
largest similarities of the row (ranks beyond are not needed and stay BEYOND, except the best positive's), with a
stable sort for rows in which a positive is tied; a large part of the gallery is ranked by a stable sort.

Gallery rows to leave out (the query itself, ignored ones) have similarity -inf and are not among the positives.
"""

import numpy as np
import torch
from torch import Tensor

from nearfar.validation import Array, Ints

BEYOND = np.int64(2**62)


def positive_ranks(scores: Array, positions: Ints, depth: int) -> Ints:
    """Ascending 1-based ranks [b, W] of the positives at `positions` (padded with -1) in rows of `scores` [b, N].

    Padding is BEYOND. Ranks larger than `depth` may be BEYOND, except the first.

    >>> row = np.array([[0.1, 0.9, 0.5, 0.9]], dtype=np.float32)
    >>> positive_ranks(row, np.array([[3, 0]]), depth=4).tolist()
    [[2, 4]]
    """
    rows, gallery = scores.shape
    positives = np.count_nonzero(positions >= 0) / rows
    # What a row costs in nanoseconds, measured on one core.
    ways = {
        by_counting: positives * (3000 + 0.18 * gallery),
        by_selection: 50_000 / rows
        + 100 * positives
        + (2 * gallery + 12 * depth if depth < gallery // 2 else 8 * gallery),
        by_stable_sort: 10_000 + 15 * gallery,
    }
    return min(ways, key=lambda way: ways[way])(scores, positions, depth)


def by_counting(scores: Array, positions: Ints, depth: int = 0) -> Ints:
    """The formula above for each positive of each row; all ranks are exact whatever the depth."""
    ranks = np.full(positions.shape, BEYOND)
    for i, places in enumerate(positions.tolist()):
        for j, place in enumerate(places):
            if place >= 0:
                ranks[i, j] = _count(scores[i], place)
    ranks.sort(axis=1)
    return ranks


def by_selection(scores: Array, positions: Ints, depth: int) -> Ints:
    """Ranks up to `depth` by binary search in the sorted `depth` largest values of each row."""
    gallery = scores.shape[1]
    cut = gallery - depth if depth < gallery // 2 else 0
    top = np.sort(np.partition(scores, cut, axis=1)[:, cut:] if cut else scores, axis=1)
    values = np.take_along_axis(scores, np.maximum(positions, 0), axis=1)
    table, needles = torch.from_numpy(top), torch.from_numpy(values)
    above = top.shape[1] - torch.searchsorted(table, needles, right=True).numpy()
    equal = top.shape[1] - torch.searchsorted(table, needles).numpy() - above
    found = (values >= top[:, :1]) & (positions >= 0)
    ranks: Ints = np.where(found, 1 + above, BEYOND)
    # Equals of the smallest selected value may have been left outside the selection.
    tied = found & ((equal > 1) | ((values == top[:, :1]) & (cut > 0)))
    again = tied.any(axis=1)
    ranks[again] = by_stable_sort(scores[again], positions[again])
    values[positions < 0] = -np.inf
    for i in np.flatnonzero((ranks == BEYOND).all(axis=1) & (positions >= 0).any(axis=1)):
        best = np.lexsort((positions[i], -values[i]))[0]
        ranks[i, best] = _count(scores[i], positions[i, best])
    ranks.sort(axis=1)
    return ranks


def by_stable_sort(scores: Array, positions: Ints, depth: int = 0) -> Ints:
    """All ranks, from a stable sort of each row."""
    ranks = np.full(positions.shape, BEYOND)
    for row, places, out in zip(scores, positions, ranks, strict=True):
        relevant = np.zeros(len(row), dtype=bool)
        relevant[places[places >= 0]] = True
        found = np.flatnonzero(relevant[stable_order(row)])
        out[: len(found)] = 1 + found
    return ranks


def by_device_sort(scores: Tensor, positions: Tensor) -> Tensor:
    """All ranks, from a stable sort of whole blocks: for accelerators, which are good at it."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    places = torch.arange(1, order.shape[1] + 1, device=order.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    return ranks.gather(1, positions.clamp_min(0)).masked_fill_(positions < 0, int(BEYOND)).sort(dim=1).values


def stable_order(row: Array) -> Ints:
    """Positions by descending value, equal values by position: a faster `argsort(-row, kind="stable")`.

    A float32's bits, with the magnitude flipped for negatives, order like the number. Bits and position in one int64
    are unique, so any sort is stable.

    >>> stable_order(np.array([0.5, 1.0, 0.5], dtype=np.float32)).tolist()
    [1, 0, 2]
    """
    if row.dtype != np.float32:
        return np.argsort(-row, kind="stable")
    bits = (0.0 - row).view(np.int32)  # 0 - x also turns -0.0 into 0.0: they are equal and must tie
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)
    keys: Ints = (bits.astype(np.int64) << 32) | np.arange(len(row))
    keys.sort()
    return keys & 0xFFFFFFFF


def _count(row: Array, place: int) -> int:
    value = row[place]
    return 1 + int(np.count_nonzero(row[:place] >= value)) + int(np.count_nonzero(row[place + 1 :] > value))
