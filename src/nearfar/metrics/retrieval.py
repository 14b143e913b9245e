"""Retrieval metrics from the ranks of the positives.

With r_1 < r_2 < ... < r_R the 1-based ranks of a query's R positives, and n(k) = #{j : r_j <= k}:

    recall@k      1 if r_1 <= k else 0                    (any positive in the first k, as in the DML papers)
    precision@k   n(k) / k
    map@k         (1/k) sum_{j : r_j <= k} j / r_j         (divides by k, not min(k, R): MPA, Table 3)
    map@r         map@k with k = R                         (Musgrave et al., ECCV 2020, arXiv 2003.08505)
    map           (1/R) sum_j j / r_j                      (average precision of the whole ranking)
    r-precision   n(R) / R
    ndcg@k        sum_{j : r_j <= k} 1 / log2(1 + r_j)  /  sum_{i <= min(k, R)} 1 / log2(1 + i)
    mrr           1 / r_1

A cut-off larger than the gallery is legal: nothing follows the last row, so recall@k and ndcg@k keep their
last value and precision@k and map@k go on dividing by k.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nearfar.metrics.exact.positions import BEYOND
from nearfar.metrics.names import cut_of
from nearfar.validation import Ints

Floats = NDArray[np.float64]
Columns = dict[str, Floats]


def empty_columns(names: Sequence[str], queries: int) -> Columns:
    """A column of NaN for each metric and for R, the rank of the best positive and the row ranked first."""
    return {name: np.full(queries, np.nan) for name in (*names, "positives", "first", "nearest")}


def fill(columns: Columns, names: Sequence[str], here: Ints, ranks: Ints, positives: Ints, nearest: Ints) -> None:
    """Write the queries `here`, given their ascending ranks [b, W], R [b] and nearest rows [b], into the columns."""
    columns["positives"][here], columns["nearest"][here] = positives, nearest
    kept = positives > 0
    if kept.any():
        columns["first"][here[kept]] = ranks[kept, 0]
        for name, values in from_ranks(names, ranks[kept], positives[kept]).items():
            columns[name][here[kept]] = values


def from_ranks(names: Sequence[str], ranks: Ints, positives: Ints) -> Columns:
    """Each named metric for each query, from ascending ranks [b, W] (BEYOND = not found) and R [b] >= 1.

    >>> from_ranks(["recall@1", "map@r", "ndcg@10"], np.array([[2, 3]]), np.array([2]))["map@r"].tolist()
    [0.25]
    """
    cuts = {name: cut_of(name) for name in names}
    furthest = max((k or 0 for name, k in cuts.items() if not name.startswith("recall")), default=0)

    def hits(cut: int | Ints) -> Ints:
        found: Ints = np.count_nonzero(ranks <= np.reshape(cut, (-1, 1)), axis=1)
        return found

    def at(totals: Floats, found: Ints) -> Floats:
        return np.take_along_axis(totals, found[:, None], axis=1)[:, 0]

    # r_j >= j, so the first k ranks are all that a cut at k can reach.
    near = ranks[:, :furthest]
    gain = _running_sum(1 / np.log2(1.0 + near))
    reach = ranks if {"map", "map@r"} & set(names) else near
    precision = _running_sum(np.arange(1, reach.shape[1] + 1) / reach)

    def ideal(cut: int) -> Floats:
        best = np.cumsum(1 / np.log2(2.0 + np.arange(min(cut, int(positives.max())))))
        reached: Floats = best[np.minimum(cut, positives) - 1]
        return reached

    at_cut: dict[str, Callable[[int], Floats]] = {
        "recall": lambda k: (ranks[:, 0] <= k).astype(np.float64),
        "precision": lambda k: hits(k) / k,
        "map": lambda k: at(precision, hits(k)) / k,
        "ndcg": lambda k: at(gain, hits(k)) / ideal(k),
    }
    whole: dict[str, Callable[[], Floats]] = {
        "map@r": lambda: at(precision, hits(positives)) / positives,
        "map": lambda: at(precision, hits(int(BEYOND) - 1)) / positives,
        "r-precision": lambda: hits(positives) / positives,
        "mrr": lambda: np.where(ranks[:, 0] < BEYOND, 1 / ranks[:, 0], 0.0),
    }
    return {n: whole[n]() if k is None else at_cut[n.partition("@")[0]](k) for n, k in cuts.items()}


def _running_sum(terms: Floats) -> Floats:
    """[b, W + 1]: the sum of the first 0, 1, ..., W terms of each row."""
    totals: Floats = np.cumsum(np.pad(terms, ((0, 0), (1, 0))), axis=1)
    return totals
