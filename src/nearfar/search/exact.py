"""Exact nearest neighbors by cosine, with the same result for a query alone, in any batch, and among ties.

Candidates come from fast matrix products, whose last digits depend on how the vectors are grouped into blocks. The
similarity of each candidate is then computed again, one pair at a time, in an order that depends only on the two
vectors. Ties are ranked by row. A query whose k-th neighbor is not clearly separated from its last candidate gets more
candidates, and finally all rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from functools import lru_cache
from operator import sub
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.validation import Ints

Vectors = NDArray[np.float32]
Neighbors = tuple[Vectors, Ints]

# Below this number of queries, the scan of faiss is faster than block products; above it, up to five times slower.
# The scan is favored for longer where the vectors fit into the processor's cache (measured).
FEW, FEW_IN_CACHE, CACHE_BYTES = 4, 16, 1 << 24
QUERY_BLOCK, VECTOR_BLOCK = 512, 8192
# The number of candidates beyond k, and the factor by which an undecided query gets more.
EXTRA, WIDER = 8, 8
# Arrays, because numpy takes microseconds to find the type of a Python number.
ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)
# The largest number of candidate coordinates in memory at once.
MAX_GATHERED = 1 << 24


def search_exact(queries: Vectors, vectors: Vectors, k: int, *, rows: Ints | None = None) -> Neighbors:
    """Return the k nearest rows of `vectors` for each query.

    Args:
        queries: float32 unit vectors [Q, d]. A zero vector has distance 1 to everything.
        vectors: float32 unit vectors [N, d].
        k: Number of neighbors.
        rows: Ascending row numbers. If given, only these rows are searched.

    Returns:
        Cosine distances [Q, k], ascending, and rows [Q, k]; inf and -1 where there are fewer than k rows.

    >>> search_exact(np.eye(2, dtype=np.float32)[:1], np.eye(2, dtype=np.float32)[[1, 0, 0]], 2)
    (array([[0., 0.]], dtype=float32), array([[1, 2]]))
    """
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    neighbors = np.full((len(queries), k), -1, dtype=np.int64)
    for start in range(0, len(queries), QUERY_BLOCK):
        block = slice(start, start + QUERY_BLOCK)
        distances[block], neighbors[block] = _search_block(queries[block], vectors, k, rows)
    return distances, neighbors


def rank_candidates(queries: Vectors, vectors: Vectors, candidates: Ints, k: int) -> Neighbors:
    """Return the best k of the candidates [Q, w] (rows of `vectors`, -1 for none), as `search_exact` does."""
    step = max(1, MAX_GATHERED // max(1, candidates.shape[1] * vectors.shape[1]))
    if len(queries) > step:
        blocks = [slice(start, start + step) for start in range(0, len(queries), step)]
        parts = [rank_candidates(queries[block], vectors, candidates[block], k) for block in blocks]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    similarity = np.einsum("qd,qwd->qw", queries, vectors[candidates])
    similarity[candidates < 0] = -np.inf
    order = np.lexsort((candidates, -similarity), axis=1)[:, :k]
    query = np.arange(len(queries))[:, None]
    best, chosen = similarity[query, order], candidates[query, order]
    if chosen.shape[1] < k:
        missing = ((0, 0), (0, k - chosen.shape[1]))
        best, chosen = np.pad(best, missing, constant_values=-np.inf), np.pad(chosen, missing, constant_values=-1)
    return _to_distances(best), chosen


def accept_order(similarity: Vectors, candidates: Ints, dim: int) -> Neighbors | None:
    """Return candidates that are already sorted as neighbors, or None if some are too close to trust their order.

    Args:
        similarity: Cosines [Q, k], descending; -inf where a candidate is missing.
        candidates: Rows [Q, k]; -1 where a candidate is missing.
        dim: Number of dimensions of the vectors.
    """
    distances = _to_distances(similarity)
    return (distances, candidates) if _smallest_gap(distances) > rounding_error(dim) else None


def _smallest_gap(distances: Vectors) -> float:
    if len(distances) == 1:
        # Python is faster for a single query.
        row = distances[0].tolist()
        return min(map(sub, row[1:], row), default=0.0)
    gaps = distances[:, 1:] - distances[:, :-1]
    # The gap between two missing candidates is NaN, which argmin returns first.
    return float(gaps.item(gaps.argmin())) if gaps.size else 0.0


@lru_cache
def rounding_error(dim: int) -> float:
    """Return the largest difference between two ways to sum the products of unit vectors of `dim` dimensions."""
    return 2**-22 * math.sqrt(dim)


def has_all(rows: Ints) -> bool:
    """Return whether no row is missing (-1)."""
    # For small arrays argmin takes a third of the time of min.
    return not rows.size or bool(rows.item(rows.argmin()) >= 0)


def _search_block(queries: Vectors, vectors: Vectors, k: int, rows: Ints | None) -> Neighbors:
    count = len(vectors) if rows is None else len(rows)
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    neighbors = np.full((len(queries), k), -1, dtype=np.int64)
    if not count:
        return distances, neighbors
    error = rounding_error(vectors.shape[1])
    undecided = np.arange(len(queries))
    for width in (k + EXTRA, WIDER * (k + EXTRA)):
        if not len(undecided):
            return distances, neighbors
        width = min(width, count)
        similarity, candidates = _candidates(queries[undecided], vectors, width, rows)
        distances[undecided], neighbors[undecided] = rank_candidates(queries[undecided], vectors, candidates, k)
        if width == count:
            return distances, neighbors
        is_clear = similarity.min(1) < 1 - distances[undecided, k - 1] - error
        undecided = undecided[~is_clear]
    for query in undecided:
        distances[query], neighbors[query] = _search_all(queries[query], vectors, k, rows)
    return distances, neighbors


def _candidates(queries: Vectors, vectors: Vectors, width: int, rows: Ints | None) -> Neighbors:
    """Return the approximate similarities and rows of about the `width` most similar vectors, in any order."""
    if rows is None and len(queries) < (FEW_IN_CACHE if vectors.nbytes <= CACHE_BYTES else FEW):
        result: Neighbors = faiss.knn(queries, np.asarray(vectors), width, metric=faiss.METRIC_INNER_PRODUCT)
        return result
    x = torch.from_numpy(np.ascontiguousarray(queries))
    best, best_rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for start, block in _blocks(vectors, rows):
        similarity = x @ _as_tensor(block).T
        values, columns = torch.topk(similarity, min(width, len(block)), sorted=False)
        best, best_rows = torch.cat([best, values], 1), torch.cat([best_rows, columns + start], 1)
        if best.shape[1] > width:
            best, columns = torch.topk(best, width, sorted=False)
            best_rows = best_rows.gather(1, columns)
    chosen = best_rows.numpy()
    return best.numpy(), chosen if rows is None else rows[chosen]


def _search_all(query: Vectors, vectors: Vectors, k: int, rows: Ints | None) -> Neighbors:
    """Compare one query with every row; each product is computed as in `rank_candidates`."""
    similarity = np.concatenate([np.einsum("nd,d->n", block, query) for _, block in _blocks(vectors, rows)])
    order = np.argsort(-similarity, kind="stable")[:k]
    # There are at least k rows here: with fewer, all of them were candidates before.
    return _to_distances(similarity[order]), order if rows is None else rows[order]


def _to_distances(similarity: Vectors) -> Vectors:
    """Return 1 - cosine, at least 0: rounding can put a cosine just above 1."""
    distances: Vectors = np.subtract(ONE, similarity)
    return np.maximum(distances, ZERO, out=distances)


def _blocks(vectors: Vectors, rows: Ints | None) -> Iterator[tuple[int, Vectors]]:
    for start in range(0, len(vectors) if rows is None else len(rows), VECTOR_BLOCK):
        part = slice(start, start + VECTOR_BLOCK)
        yield start, np.asarray(vectors[part]) if rows is None else vectors[rows[part]]


def _as_tensor(array: NDArray[Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        # torch warns that a read-only memory map could be written to; nothing here writes.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
