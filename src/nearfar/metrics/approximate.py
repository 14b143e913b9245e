"""Evaluation with an approximate search index for very large galleries. Its error is measured on sampled queries."""

from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from nearfar.metrics.exact.positions import BEYOND
from nearfar.metrics.names import required_depth
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns, compute_metrics, empty_columns
from nearfar.validation import Ints

BLOCK = 1024
# Request at least this many neighbors, because mrr is 0 if no positive is among them.
MIN_NEIGHBORS = 1000


def check_index(index: Any, rows: int, dim: int, distance: str) -> None:
    """Check that `index` is a faiss index of `rows` vectors of dimension `dim` that ranks by `distance`.

    For cosine, the index must contain unit vectors. It may then use inner products or L2.
    """
    missing = [name for name in ("search", "ntotal", "d") if not hasattr(index, name)]
    if missing:
        raise ValueError(
            f"index must be a faiss index, got {type(index).__name__} without the attributes {', '.join(missing)}"
        )
    if index.ntotal != rows or index.d != dim:
        raise ValueError(
            f"index holds {index.ntotal} vectors of dimension {index.d}, but embeddings have shape [{rows}, {dim}]: "
            "add all embeddings to the index, in the same order"
        )
    if distance == "euclidean" and getattr(index, "metric_type", faiss.METRIC_L2) != faiss.METRIC_L2:
        raise ValueError("index ranks by inner products, but distance is 'euclidean': build it with METRIC_L2")
    if distance == "cosine" and hasattr(index, "reconstruct"):
        length = float(np.linalg.norm(reconstruct_first(index, dim)))
        if not 0.9 < length < 1.1 and length > 0:
            raise ValueError(f"index has vectors of norm {length:.3g}, but distance is 'cosine': add unit vectors")


def reconstruct_first(index: Any, dim: int) -> NDArray[np.float32]:
    """Return the first vector stored in an index, or zeros if the index cannot reconstruct vectors."""
    try:
        row: NDArray[np.float32] = index.reconstruct(0)
    except RuntimeError:
        return np.zeros(dim, dtype=np.float32)
    return row


def evaluate_with_index(
    names: Sequence[str],
    index: Any,
    queries: NDArray[np.float32],
    relevance: Relevance,
    *,
    same_set: bool,
    ignored: Sequence[Ints] | None,
) -> Columns:
    """Compute the metrics of every query from the rankings that `index` returns. See `evaluate_blocks` for the result.

    Samples with equal similarities stay in the order in which the index returns them. The search requests 1,000
    neighbors, or more if the metrics need them. A positive that the index does not return counts as not found: mrr and
    map are computed from the returned part of the ranking. The column "first", the position of the best positive, is 0
    if this part has no positive.
    """
    columns = empty_columns(names, len(queries))
    bound = relevance.max_positives()
    extra = int(same_set) + max((len(indices) for indices in ignored or ()), default=0)
    cuts = [1, *(int(c) for c in (name.partition("@")[2] for name in names) if c.isdigit())]
    depth = required_depth(names, int(bound.max(initial=1)), relevance.gallery)
    neighbors = min(max(depth, MIN_NEIGHBORS, *cuts) + extra, relevance.gallery)
    for start in range(0, len(queries), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(queries)))
        rankings: Ints = index.search(np.ascontiguousarray(queries[block]), neighbors)[1]
        for row, ranking, indices in zip(block.tolist(), rankings, relevance.positives(block), strict=True):
            left_out = np.array([row] if same_set else [], dtype=np.int64)
            left_out = left_out if ignored is None else np.union1d(left_out, ignored[row])
            ranking = ranking[(ranking >= 0) & ~np.isin(ranking, left_out)]
            positives = np.setdiff1d(indices[indices >= 0], left_out, assume_unique=True)
            columns["positives"][row] = len(positives)
            columns["nearest"][row] = ranking[0] if len(ranking) else -1
            if not len(positives):
                continue
            hits = 1 + np.flatnonzero(np.isin(ranking, positives))
            columns["first"][row] = hits[0] if len(hits) else 0
            positions = np.append(hits, BEYOND)[None]
            for name, value in compute_metrics(names, positions, np.array([len(positives)])).items():
                columns[name][row] = value[0]
    return columns


def measure_error(names: Sequence[str], approximate: Columns, exact: Columns, rows: Ints) -> dict[str, float]:
    """Return the mean error (approximate minus exact value) of each metric over a sample of queries.

    Args:
        names: Metrics to compare.
        approximate: Approximate values of each metric for all queries.
        exact: Exact values of each metric for the queries `rows` only.
        rows: Indices of the sampled queries.

    Returns:
        The mean error of each metric. The key "sample" has the number of sampled queries that have a positive.
    """
    some = exact["positives"] > 0
    error = {n: float(np.mean(approximate[n][rows][some] - exact[n][some])) if some.any() else 0.0 for n in names}
    return {"sample": float(np.count_nonzero(some)), **error}
