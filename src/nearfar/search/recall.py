"""Recall of an approximate search against exact search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nearfar.search.exact import Neighbors, Vectors, rounding_error, search_exact
from nearfar.validation import Ints, check_count


def measure_recall(
    vectors: Vectors, search: Callable[[Vectors, int], Neighbors], *, sample: int = 1000, k: int = 10
) -> float:
    """Return recall@k: the fraction of the k nearest others of some vectors that `search` finds.

    The queries are `sample` vectors drawn with a fixed seed. A neighbor counts as found if it is as near as the exact
    k-th neighbor, up to rounding.

    Args:
        vectors: Unit vectors [N, dim] to search in.
        search: Returns the distances and rows [Q, k] of queries [Q, dim] and k.
        sample: Number of queries.
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
    """Drop the row of each query from its distances [Q, k + 1], or the last one if that row was not found."""
    is_self = rows == queries[:, None]
    is_self[~is_self.any(1), -1] = True
    kept: Vectors = distances[~is_self].reshape(len(queries), -1)
    return kept
