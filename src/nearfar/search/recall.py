"""Recall of an approximate search, measured against exact search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nearfar.search.exact import Neighbors, Vectors, rounding_error, search_exact
from nearfar.validation import Ints, check_count


def measure_recall(
    vectors: Vectors, search: Callable[[Vectors, int], Neighbors], *, sample: int = 1000, k: int = 10
) -> float:
    """Return recall@k: the fraction of the k nearest neighbors that `search` finds, averaged over a sample of queries.

    The queries are drawn from `vectors` with a fixed seed. A query is not its own neighbor. A result counts as correct
    if it is at least as near as the exact k-th neighbor, up to rounding.

    Args:
        vectors: Unit vectors [N, dim] to search in.
        search: A function that takes queries [Q, dim] and k, and returns distances [Q, k] and rows [Q, k].
        sample: Number of queries. If there are fewer vectors, all of them are queries.
        k: Number of neighbors.
    """
    check_count("k", k)
    if len(vectors) < 2:
        return 1.0
    rows = np.arange(len(vectors))
    if len(vectors) > sample:
        size = check_count("sample", sample)
        rows = np.sort(np.random.default_rng(0).choice(len(vectors), size, replace=False))
    queries = np.ascontiguousarray(vectors[rows])
    k = min(k, len(vectors) - 1)
    exact = _without_self(rows, *search_exact(queries, vectors, k + 1))
    actual = _without_self(rows, *search(queries, k + 1))
    return float((actual <= exact[:, -1:] + rounding_error(vectors.shape[1])).mean())


def _without_self(queries: Ints, distances: Vectors, rows: Ints) -> Vectors:
    """Return the distances [Q, k] to the neighbors other than the query itself.

    Args:
        queries: The row of each query [Q].
        distances: Distances [Q, k + 1]. If a query is not among its own neighbors, its last distance is dropped.
        rows: The rows of the neighbors [Q, k + 1].
    """
    is_self = rows == queries[:, None]
    is_self[~is_self.any(1), -1] = True
    kept: Vectors = distances[~is_self].reshape(len(queries), -1)
    return kept
