"""Exact nearest neighbors by cosine. The results of a query do not depend on the other queries in its batch.

Candidates come from fast matrix products. The last digits of these products depend on how the vectors are grouped into
blocks. The similarity of each candidate is therefore computed again, one pair at a time, with an order of summation
that depends only on the number of dimensions. Equal similarities are ordered by row.

If the least similar candidate of a query is not clearly less similar than the k-th neighbor, a row that is not a
candidate could be a neighbor. The search is then repeated with more candidates, and finally with all rows.
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

# For fewer than FEW queries, the scan of faiss is faster than matrix products in blocks; for more, it is up to five
# times slower. If the vectors take at most CACHE_BYTES, they fit into the processor's cache, and the limit is
# FEW_IN_CACHE. All three values were measured.
FEW, FEW_IN_CACHE, CACHE_BYTES = 4, 16, 1 << 24
QUERY_BLOCK, VECTOR_BLOCK = 512, 8192
# EXTRA is the number of candidates in addition to k. The second search has WIDER times as many candidates.
EXTRA, WIDER = 8, 8
# These constants are arrays, because NumPy takes microseconds to determine the dtype of a Python number.
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
    """Return the distances and rows, both [Q, k], of the nearest candidates, in the format of `search_exact`.

    Args:
        queries: float32 unit vectors [Q, d].
        vectors: float32 unit vectors [N, d].
        candidates: Rows of `vectors` [Q, w]; -1 where a candidate is missing.
        k: Number of neighbors.
    """
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
    """Return sorted candidates as neighbors, or None if rounding errors could have changed their order.

    The order is trusted if all differences between successive distances are larger than the rounding error. If k = 1,
    there are no differences, and the result is None.

    Args:
        similarity: Cosines [Q, k], descending; -inf where a candidate is missing.
        candidates: Rows [Q, k]; -1 where a candidate is missing.
        dim: Number of dimensions of the vectors.
    """
    distances = _to_distances(similarity)
    return (distances, candidates) if _smallest_gap(distances) > rounding_error(dim) else None


def _smallest_gap(distances: Vectors) -> float:
    if len(distances) == 1:
        # For a single query, plain Python is faster than NumPy.
        row = distances[0].tolist()
        return min(map(sub, row[1:], row), default=0.0)
    gaps = distances[:, 1:] - distances[:, :-1]
    # The gap between two missing candidates is NaN. If there is a NaN, argmin returns its position.
    return float(gaps.item(gaps.argmin())) if gaps.size else 0.0


@lru_cache
def rounding_error(dim: int) -> float:
    """Return how much the dot product of two unit vectors of `dim` dimensions can change with the summation order."""
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
    """Return the similarities and rows of the `width` most similar vectors, up to rounding and in any order."""
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
    """Compare one query with every row, and compute each similarity as in `rank_candidates`."""
    similarity = np.concatenate([np.einsum("nd,d->n", block, query) for _, block in _blocks(vectors, rows)])
    order = np.argsort(-similarity, kind="stable")[:k]
    # There are at least k rows here, because `_search_block` returns earlier if all rows were candidates.
    return _to_distances(similarity[order]), order if rows is None else rows[order]


def _to_distances(similarity: Vectors) -> Vectors:
    """Return 1 - cosine, clipped to at least 0, because rounding can make a cosine slightly larger than 1."""
    distances: Vectors = np.subtract(ONE, similarity)
    return np.maximum(distances, ZERO, out=distances)


def _blocks(vectors: Vectors, rows: Ints | None) -> Iterator[tuple[int, Vectors]]:
    for start in range(0, len(vectors) if rows is None else len(rows), VECTOR_BLOCK):
        part = slice(start, start + VECTOR_BLOCK)
        yield start, np.asarray(vectors[part]) if rows is None else vectors[rows[part]]


def _as_tensor(array: NDArray[Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        # torch warns that writing to a tensor of a read-only memory map is undefined. This module never writes to it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
