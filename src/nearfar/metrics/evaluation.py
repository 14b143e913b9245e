"""evaluate: every metric asked for, from embeddings and labels, in one call."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.metrics.approximate import check_index, measured_error, search_columns
from nearfar.metrics.clustering import adjusted_mutual_info, normalized_mutual_info, pairwise_f1
from nearfar.metrics.exact.half_matrix import triangle
from nearfar.metrics.kmeans import kmeans
from nearfar.metrics.names import CLUSTERING, RETRIEVAL, expand
from nearfar.metrics.relevance import as_ignored, relevance
from nearfar.metrics.retrieval import Columns
from nearfar.metrics.scores import Scores
from nearfar.metrics.silhouette import silhouette
from nearfar.metrics.similarity import DISTANCES, checked_squared_lengths, gallery, squared_lengths
from nearfar.metrics.streaming import stream
from nearfar.validation import Array, Embeddings, Labels, as_embeddings, as_labels

AGREEMENT = {"nmi": normalized_mutual_info, "ami": adjusted_mutual_info, "f1": pairwise_f1}


@torch.no_grad()
def evaluate(
    embeddings: Embeddings,
    labels: Labels,
    *,
    queries: tuple[Embeddings, Labels] | None = None,
    ks: Iterable[int] = (1, 2, 4, 8),
    metrics: str | Iterable[str] = RETRIEVAL,
    ignore: Sequence[ArrayLike] | Array | None = None,
    distance: str = "cosine",
    device: str | torch.device | None = None,
    memory_mb: int = 256,
    seeds: Iterable[int] = (0, 1, 2),
    index: Any = None,
    index_sample: int = 1000,
) -> Scores:
    """Score embeddings by how well they retrieve and cluster their labels. Exact, in one pass, in bounded memory.

    Args:
        embeddings: [N, d] torch or numpy, raw (cosine does not need unit rows). Half precision is computed in
            float32, float64 in float64 (clustering always in float32).
        labels: [N] integers of any size or strings, or multi-hot [N, C]: rows that share a label are positives.
        queries: (embeddings [Q, d], labels) searched for in the first as gallery. Without it every row is a
            query against all the others, itself removed.
        ks: the cut-offs of the metrics named without one.
        metrics: names as in `nearfar.metrics.names`, e.g. "recall", "ndcg@10", "map@r", "mrr", "nmi".
        ignore: for each query the gallery positions that neither help nor harm it, as lists or a bool [Q, N]
            (`protocols.same_camera` makes them for re-identification).
        distance: "cosine" or "euclidean".
        device: where to compute; by default where the embeddings are.
        memory_mb: what a block of similarities may take. It changes the speed; similarities that are equal but for
            rounding may come out in another order with another block size.
        seeds: one k-means for each; nmi, ami and f1 are their mean, `Scores.spread` the standard deviation.
        index: a faiss index of the embeddings (unit rows for cosine) whose answers replace the exact ranking;
            the error this makes is measured on `index_sample` queries and told in `Scores.approximation`.

    Ties rank by gallery position (a stable sort). Queries without a positive are in no mean and counted as
    `dropped`; if no query has one it is an error. A zero row has cosine 0 to everything. A cut-off beyond the
    gallery is legal (see `nearfar.metrics.retrieval`). Clustering metrics are about `embeddings`, never about
    `queries`, and need one label a row.

    >>> scores = evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 1.0]], ["cat", "cat", "dog", "dog"])
    >>> scores["recall@1"], scores["map@r"], scores.dropped
    (1.0, 1.0, 0)
    """
    names = expand(metrics, ks)
    where = None if device is None else torch.device(device)
    rows = as_embeddings(embeddings, name="embeddings", device=where)
    row_labels = as_labels(labels, len(rows), name="labels")
    found, found_labels = _queries(queries, rows, row_labels)
    _check_options(distance, memory_mb, index_sample)
    squares = checked_squared_lengths(rows, "embeddings")
    if queries is not None:
        checked_squared_lengths(found, "queries[0]")
    groups = [name for name in names if name in CLUSTERING]
    ranked = [name for name in names if name not in CLUSTERING]
    values, spread = _cluster(groups, rows, row_labels, distance=distance, memory_mb=memory_mb, seeds=tuple(seeds))
    if not ranked:
        return Scores(_ordered(names, values), 0, 0, len(rows), distance, spread)

    ignored = None if ignore is None else as_ignored(ignore, len(found), len(rows))
    who = relevance(row_labels, found_labels)
    same_set = queries is None
    prepared = gallery(rows, squares, distance)
    approximation = None
    if index is None:
        columns = triangle(ranked, prepared, who, memory_mb=memory_mb) if same_set and ignored is None else None
        if columns is None:
            everyone = np.arange(len(found))
            columns = stream(
                ranked, prepared, found, who, rows=everyone, same_set=same_set, ignored=ignored, memory_mb=memory_mb
            )
    else:
        check_index(index, len(rows), rows.shape[1], distance)
        points = _points(found, distance).cpu().numpy()
        columns = search_columns(ranked, index, points, who, same_set=same_set, ignored=ignored)
        sample = np.sort(np.random.default_rng(0).permutation(len(found))[:index_sample])
        exact = stream(
            ranked, prepared, found, who, rows=sample, same_set=same_set, ignored=ignored, memory_mb=memory_mb
        )
        approximation = measured_error(ranked, columns, exact, sample)
    return _scores(names, values, spread, columns, found_labels, len(rows), distance, approximation)


def _queries(queries: tuple[Embeddings, Labels] | None, rows: Tensor, labels: Array) -> tuple[Tensor, Array]:
    if queries is None:
        return rows, labels
    if not isinstance(queries, tuple | list) or len(queries) != 2:
        raise ValueError(f"queries must be a pair (embeddings, labels), got {type(queries).__name__}")
    found = as_embeddings(queries[0], name="queries[0]", device=rows.device)
    if found.shape[1] != rows.shape[1]:
        raise ValueError(f"queries[0] has dimension {found.shape[1]}, embeddings have {rows.shape[1]}")
    return found, as_labels(queries[1], len(found), name="queries[1]")


def _check_options(distance: str, memory_mb: int, index_sample: int) -> None:
    if distance not in DISTANCES:
        raise ValueError(f"distance must be one of {', '.join(DISTANCES)}, got {distance!r}")
    if memory_mb < 1:
        raise ValueError(f"memory_mb must be at least 1, got {memory_mb}")
    if index_sample < 1:
        raise ValueError(f"index_sample must be at least 1, got {index_sample}")


def _points(rows: Tensor, distance: str) -> Tensor:
    """float32 rows whose Euclidean distances are the ones asked for."""
    if distance == "euclidean":
        return rows.float()
    return rows.float() / squared_lengths(rows).sqrt().clamp_min(1e-30)[:, None].float()


def _centered(rows: Tensor, distance: str) -> Tensor:
    """`_points` for clustering, around the origin: float32 products lose what is small beside a large common part."""
    return _points(rows, distance) if distance == "cosine" else (rows - rows.double().mean(0)).float()


def _cluster(
    groups: Sequence[str],
    rows: Tensor,
    labels: Array,
    *,
    distance: str,
    memory_mb: int,
    seeds: tuple[int, ...],
) -> tuple[dict[str, float], dict[str, float]]:
    values: dict[str, float] = {}
    spread: dict[str, float] = {}
    if not groups:
        return values, spread
    if labels.ndim != 1:
        raise ValueError(f"{groups[0]} needs one label a row, labels are multi-hot of shape {labels.shape}")
    if not seeds:
        raise ValueError("seeds is empty: k-means needs at least one")
    points = _centered(rows, distance)
    classes, codes = np.unique(labels, return_inverse=True)
    if "silhouette" in groups:
        values["silhouette"] = silhouette(points, codes, distance=distance, memory_mb=memory_mb)
    agreements = [name for name in groups if name in AGREEMENT]
    if agreements:
        table = points.cpu().numpy()
        clusters = [kmeans(table, len(classes), seed=seed) for seed in seeds]
        for name in agreements:
            each = [AGREEMENT[name](codes, found) for found in clusters]
            values[name], spread[name] = float(np.mean(each)), float(np.std(each))
    return values, spread


def _scores(
    names: Sequence[str],
    values: dict[str, float],
    spread: dict[str, float],
    columns: Columns,
    labels: Array,
    size: int,
    distance: str,
    approximation: dict[str, float] | None,
) -> Scores:
    kept = np.flatnonzero(columns["positives"] > 0)
    if not len(kept):
        raise ValueError(
            f"none of the {len(labels)} queries has a positive in the gallery of {size}: no retrieval metric is "
            "defined (check that labels of queries and gallery match, and that ignore leaves a positive)"
        )
    columns = {name: column[kept] for name, column in columns.items()}
    means = {name: float(columns[name].mean()) for name in names if name in columns}
    return Scores(
        means=_ordered(names, values | means),
        queries=len(kept),
        dropped=len(labels) - len(kept),
        gallery=size,
        distance=distance,
        spread=spread,
        approximation=approximation,
        rows=kept,
        labels=labels[kept],
        columns=columns,
    )


def _ordered(names: Sequence[str], values: dict[str, float]) -> dict[str, float]:
    return {name: values[name] for name in names}
