"""The nearest rows by cosine, exactly: the same answer for a query alone, in a batch, and among any number of equals.

Candidates come from fast products, whose last digits depend on how rows are laid out in blocks. Their similarities are
then computed again one pair at a time, in an order that depends on the two vectors alone, and ranked: ties by row. A
query whose candidates do not end clearly below its k-th neighbor gets more of them, at last all rows.
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

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Found = tuple[Floats, Ints]

# below this many queries faiss's scan is faster than products of blocks, above it up to five times slower; its scan
# gains where the vectors stay in the processor's cache (measured)
FEW, FEW_IN_CACHE, CACHE = 4, 16, 1 << 24
QUERIES, ROWS = 512, 8192
# candidates beyond k, then this many times as many for those that need more
EXTRA, WIDER = 8, 8
# as arrays, because numpy takes microseconds to find the type of a Python number
ZERO, ONE = np.zeros((), np.float32), np.ones((), np.float32)
# numbers of candidates in memory at once
GATHERED = 1 << 24


def nearest(queries: Floats, vectors: Floats, k: int, *, rows: Ints | None = None) -> Found:
    """Cosine distances [Q, k], ascending, and rows of `vectors` [Q, k]; inf and -1 where there are fewer than k.

    `queries` [Q, d] and `vectors` [N, d] are float32 unit rows (or zeros, at distance 1 from everything). `rows`,
    ascending: only these may be found.

    >>> nearest(np.eye(2, dtype=np.float32)[:1], np.eye(2, dtype=np.float32)[[1, 0, 0]], 2)
    (array([[0., 0.]], dtype=float32), array([[1, 2]]))
    """
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    found = np.full((len(queries), k), -1, dtype=np.int64)
    for start in range(0, len(queries), QUERIES):
        block = slice(start, start + QUERIES)
        distances[block], found[block] = _nearest(queries[block], vectors, k, rows)
    return distances, found


def ranked(queries: Floats, vectors: Floats, candidates: Ints, k: int) -> Found:
    """The best k of the candidates [Q, w] (rows of `vectors`, -1 for none) as `nearest` gives them."""
    step = max(1, GATHERED // max(1, candidates.shape[1] * vectors.shape[1]))
    if len(queries) > step:
        blocks = [slice(start, start + step) for start in range(0, len(queries), step)]
        parts = [ranked(queries[block], vectors, candidates[block], k) for block in blocks]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    similarity = np.einsum("qd,qwd->qw", queries, vectors[candidates])
    similarity[candidates < 0] = -np.inf
    order = np.lexsort((candidates, -similarity), axis=1)[:, :k]
    query = np.arange(len(queries))[:, None]
    best, chosen = similarity[query, order], candidates[query, order]
    if chosen.shape[1] < k:
        short = ((0, 0), (0, k - chosen.shape[1]))
        best, chosen = np.pad(best, short, constant_values=-np.inf), np.pad(chosen, short, constant_values=-1)
    return _distances(best), chosen


def in_order(similarity: Floats, candidates: Ints, dim: int) -> Found | None:
    """What `ranked` gives of k candidates with cosines that are known, -inf where there is none; None where they are
    too close to be sure of their order."""
    distances = _distances(similarity)
    return (distances, candidates) if _least_gap(distances) > slack(dim) else None


def _least_gap(distances: Floats) -> float:
    if len(distances) == 1:
        # for a single query Python is faster
        row = distances[0].tolist()
        return min(map(sub, row[1:], row), default=0.0)
    gaps = distances[:, 1:] - distances[:, :-1]
    # of two that are missing the gap is NaN, which argmin finds
    return float(gaps.item(gaps.argmin())) if gaps.size else 0.0


@lru_cache
def slack(dim: int) -> float:
    """By how much two ways to add up the products of unit rows may differ."""
    return 2**-22 * math.sqrt(dim)


def present(rows: Ints) -> bool:
    """Whether none is missing, -1."""
    # argmin is a third of the time of min where there are few
    return not rows.size or bool(rows.item(rows.argmin()) >= 0)


def _nearest(queries: Floats, vectors: Floats, k: int, rows: Ints | None) -> Found:
    count = len(vectors) if rows is None else len(rows)
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    found = np.full((len(queries), k), -1, dtype=np.int64)
    if not count:
        return distances, found
    unsure = slack(vectors.shape[1])
    open_ = np.arange(len(queries))
    for width in (k + EXTRA, WIDER * (k + EXTRA)):
        if not len(open_):
            return distances, found
        width = min(width, count)
        similarity, candidates = _candidates(queries[open_], vectors, width, rows)
        distances[open_], found[open_] = ranked(queries[open_], vectors, candidates, k)
        if width == count:
            return distances, found
        clear = similarity.min(1) < 1 - distances[open_, k - 1] - unsure
        open_ = open_[~clear]
    for query in open_:
        distances[query], found[query] = _among_all(queries[query], vectors, k, rows)
    return distances, found


def _candidates(queries: Floats, vectors: Floats, width: int, rows: Ints | None) -> Found:
    """About the `width` most similar rows, in any order, with about their similarities."""
    if rows is None and len(queries) < (FEW_IN_CACHE if vectors.nbytes <= CACHE else FEW):
        found: Found = faiss.knn(queries, np.asarray(vectors), width, metric=faiss.METRIC_INNER_PRODUCT)
        return found
    asked = torch.from_numpy(np.ascontiguousarray(queries))
    best, where = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for start, block in _blocks(vectors, rows):
        similarity = asked @ _tensor(block).T
        values, places = torch.topk(similarity, min(width, len(block)), sorted=False)
        best, where = torch.cat([best, values], 1), torch.cat([where, places + start], 1)
        if best.shape[1] > width:
            best, kept = torch.topk(best, width, sorted=False)
            where = where.gather(1, kept)
    chosen = where.numpy()
    return best.numpy(), chosen if rows is None else rows[chosen]


def _among_all(query: Floats, vectors: Floats, k: int, rows: Ints | None) -> Found:
    """One query against every row, each product as `ranked` computes it."""
    similarity = np.concatenate([np.einsum("nd,d->n", block, query) for _, block in _blocks(vectors, rows)])
    order = np.argsort(-similarity, kind="stable")[:k]
    # fewer than k rows never come here: all of them were candidates
    return _distances(similarity[order]), order if rows is None else rows[order]


def _distances(similarity: Floats) -> Floats:
    """1 - cosine; rounding may put a cosine just above 1."""
    distances: Floats = np.subtract(ONE, similarity)
    return np.maximum(distances, ZERO, out=distances)


def _blocks(vectors: Floats, rows: Ints | None) -> Iterator[tuple[int, Floats]]:
    for start in range(0, len(vectors) if rows is None else len(rows), ROWS):
        part = slice(start, start + ROWS)
        yield start, np.asarray(vectors[part]) if rows is None else vectors[rows[part]]


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        # torch warns that a memory map could be written to; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
