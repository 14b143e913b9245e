"""Retrieval metrics from the positions of the positives.

Let r_1 < r_2 < ... < r_R be the 1-based positions of a query's R positives in its ranking, and n(k) the number of
positives among the first k samples, n(k) = #{j : r_j <= k}. Then:

    recall@k      1 if r_1 <= k else 0                    (any positive in the first k)
    precision@k   n(k) / k
    map@k         (1/k) sum_{j : r_j <= k} j / r_j         (divided by k, not min(k, R): arXiv 2110.03997)
    map@r         map@k with k = R                         (Musgrave et al., ECCV 2020, arXiv 2003.08505)
    map           (1/R) sum_j j / r_j                      (average precision of the whole ranking)
    r-precision   n(R) / R
    ndcg@k        sum_{j : r_j <= k} 1 / log2(1 + r_j)  /  sum_{i <= min(k, R)} 1 / log2(1 + i)
    mrr           1 / r_1

The cutoff k may be larger than the gallery. recall@k and ndcg@k then have the same value as for k equal to the size of
the gallery, and precision@k and map@k are still divided by k.
"""

from collections.abc import Callable, Sequence

import numpy as np

from nearfar.metrics.exact.positions import BEYOND
from nearfar.metrics.names import parse_cutoff
from nearfar.validation import Floats, Ints

Columns = dict[str, Floats]


def empty_columns(names: Sequence[str], queries: int) -> Columns:
    """Return a dict of arrays with one NaN per query, for each metric and for "positives", "first" and "nearest"."""
    return {name: np.full(queries, np.nan) for name in (*names, "positives", "first", "nearest")}


def fill_columns(
    columns: Columns, names: Sequence[str], queries: Ints, positions: Ints, positives: Ints, nearest: Ints
) -> None:
    """Compute the metrics of b queries and write them into `columns`.

    Args:
        columns: Arrays from `empty_columns`, changed in place.
        names: Metrics to compute.
        queries: Index of each query in the columns.
        positions: Ascending positions [b, W] of the positives, padded with BEYOND.
        positives: Number R of positives of each query.
        nearest: Gallery index of the nearest sample of each query.
    """
    columns["positives"][queries], columns["nearest"][queries] = positives, nearest
    some = positives > 0
    if some.any():
        columns["first"][queries[some]] = positions[some, 0]
        for name, values in compute_metrics(names, positions[some], positives[some]).items():
            columns[name][queries[some]] = values


def compute_metrics(names: Sequence[str], positions: Ints, positives: Ints) -> Columns:
    """Compute the metrics `names` of b queries.

    Args:
        names: Full names of the metrics.
        positions: Ascending positions [b, W] of the positives. BEYOND marks padding, positives that an index did not
            return, and positions too large to affect the metrics `names` (see `required_depth`).
        positives: Number R >= 1 of positives of each query.

    >>> compute_metrics(["recall@1", "map@r", "ndcg@10"], np.array([[2, 3]]), np.array([2]))["map@r"].tolist()
    [0.25]
    """
    cuts = {name: parse_cutoff(name) for name in names}
    furthest = max((k or 0 for name, k in cuts.items() if not name.startswith("recall")), default=0)

    def hits(cut: int | Ints) -> Ints:
        count: Ints = np.count_nonzero(positions <= np.reshape(cut, (-1, 1)), axis=1)
        return count

    def at(totals: Floats, count: Ints) -> Floats:
        return np.take_along_axis(totals, count[:, None], axis=1)[:, 0]

    # the j-th positive is at position j or later, so the first k columns are enough for cutoff k
    near = positions[:, :furthest]
    gain = _running_sum(1 / np.log2(1.0 + near))
    reach = positions if {"map", "map@r"} & set(names) else near
    precision = _running_sum(np.arange(1, reach.shape[1] + 1) / reach)

    def ideal(cut: int) -> Floats:
        best = np.cumsum(1 / np.log2(2.0 + np.arange(min(cut, int(positives.max())))))
        gains: Floats = best[np.minimum(cut, positives) - 1]
        return gains

    at_cut: dict[str, Callable[[int], Floats]] = {
        "recall": lambda k: (positions[:, 0] <= k).astype(np.float64),
        "precision": lambda k: hits(k) / k,
        "map": lambda k: at(precision, hits(k)) / k,
        "ndcg": lambda k: at(gain, hits(k)) / ideal(k),
    }
    whole: dict[str, Callable[[], Floats]] = {
        "map@r": lambda: at(precision, hits(positives)) / positives,
        "map": lambda: at(precision, hits(int(BEYOND) - 1)) / positives,
        "r-precision": lambda: hits(positives) / positives,
        "mrr": lambda: np.where(positions[:, 0] < BEYOND, 1 / positions[:, 0], 0.0),
    }
    return {n: whole[n]() if k is None else at_cut[n.partition("@")[0]](k) for n, k in cuts.items()}


def _running_sum(terms: Floats) -> Floats:
    """Return the sums [b, W + 1] of the first 0, 1, ..., W terms in each row of `terms` [b, W]."""
    totals: Floats = np.cumsum(np.pad(terms, ((0, 0), (1, 0))), axis=1)
    return totals
