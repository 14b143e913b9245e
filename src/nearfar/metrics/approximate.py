"""Evaluation by a search index, for galleries where even one pass is too much, with its error measured."""

from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from nearfar.metrics.exact.positions import BEYOND
from nearfar.metrics.names import depth_of
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns, empty_columns, from_ranks
from nearfar.validation import Ints

BLOCK = 1024
# Neighbors that an index is asked for at least, so that mrr does not depend on what else was asked for.
DEPTH = 1000


def check_index(index: Any, rows: int, dim: int, distance: str) -> None:
    """Raise if `index` is not a faiss index of these embeddings' number and dimension, or ranks by another measure.

    By cosine an index may use inner products or, since its rows are unit vectors, L2.
    """
    missing = [name for name in ("search", "ntotal", "d") if not hasattr(index, name)]
    if missing:
        raise ValueError(f"index must be a faiss index, got {type(index).__name__} without {', '.join(missing)}")
    if index.ntotal != rows or index.d != dim:
        raise ValueError(
            f"index holds {index.ntotal} vectors of dimension {index.d}, embeddings are {rows} x {dim}: "
            "add all rows in their order"
        )
    if distance == "euclidean" and getattr(index, "metric_type", faiss.METRIC_L2) != faiss.METRIC_L2:
        raise ValueError("index ranks by inner products, but distance is 'euclidean': build it with METRIC_L2")
    if distance == "cosine" and hasattr(index, "reconstruct"):
        length = float(np.linalg.norm(first_row(index, dim)))
        if not 0.9 < length < 1.1 and length > 0:
            raise ValueError(f"index holds rows of length {length:.3g}, but distance is 'cosine': add unit rows")


def first_row(index: Any, dim: int) -> NDArray[np.float32]:
    """The first vector of an index as it remembers it, zeros where it cannot tell."""
    try:
        row: NDArray[np.float32] = index.reconstruct(0)
    except RuntimeError:
        return np.zeros(dim, dtype=np.float32)
    return row


def search_columns(
    names: Sequence[str],
    index: Any,
    queries: NDArray[np.float32],
    who: Relevance,
    *,
    same_set: bool,
    ignored: Sequence[Ints] | None,
) -> Columns:
    """The columns of `stream`, with the ranking that `index` returns (the order of its answer breaks ties).

    The index is asked for 1,000 neighbors, or more if the metrics need them. A positive it does not return counts as
    not found: mrr and map see only the part of the ranking that was returned, and "first" is 0 if it returned none.
    """
    columns = empty_columns(names, len(queries))
    bound = who.at_most()
    extra = int(same_set) + max((len(each) for each in ignored), default=0) if ignored is not None else int(same_set)
    cuts = [1, *(int(c) for c in (name.partition("@")[2] for name in names) if c.isdigit())]
    wanted = max(depth_of(names, int(bound.max(initial=1)), who.gallery), DEPTH, *cuts)
    wanted = min(wanted + extra, who.gallery)
    for start in range(0, len(queries), BLOCK):
        block = np.arange(start, min(start + BLOCK, len(queries)))
        found: Ints = index.search(np.ascontiguousarray(queries[block]), wanted)[1]
        positions = who.positions(block)
        for row, answer, places in zip(block.tolist(), found, positions, strict=True):
            out = np.array([row] if same_set else [], dtype=np.int64)
            out = out if ignored is None else np.union1d(out, ignored[row])
            answer = answer[(answer >= 0) & ~np.isin(answer, out)]
            positives = np.setdiff1d(places[places >= 0], out, assume_unique=True)
            columns["positives"][row] = len(positives)
            columns["nearest"][row] = answer[0] if len(answer) else -1
            if not len(positives):
                continue
            hits = 1 + np.flatnonzero(np.isin(answer, positives))
            columns["first"][row] = hits[0] if len(hits) else 0
            ranks = np.append(hits, BEYOND)[None]
            for name, value in from_ranks(names, ranks, np.array([len(positives)])).items():
                columns[name][row] = value[0]
    return columns


def measured_error(names: Sequence[str], approximate: Columns, exact: Columns, rows: Ints) -> dict[str, float]:
    """Mean of approximate minus exact for each metric over the sampled queries `rows`, and their number."""
    kept = exact["positives"] > 0
    error = {n: float(np.mean(approximate[n][rows][kept] - exact[n][kept])) if kept.any() else 0.0 for n in names}
    return {"sample": float(np.count_nonzero(kept)), **error}
