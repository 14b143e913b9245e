"""Evaluation of embeddings: all retrieval and clustering metrics in one call."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.metrics.approximate import check_index, evaluate_with_index, measure_error
from nearfar.metrics.clustering import adjusted_mutual_info, normalized_mutual_info, pairwise_f1
from nearfar.metrics.exact.half_matrix import try_half_matrix
from nearfar.metrics.graded import Grades, LabelGrades, evaluate_grades
from nearfar.metrics.kmeans import kmeans
from nearfar.metrics.names import CLUSTERING, RETRIEVAL, expand_names, is_graded
from nearfar.metrics.relations import as_relation
from nearfar.metrics.relevance import as_ignored, match_labels
from nearfar.metrics.retrieval import Columns
from nearfar.metrics.scores import Scores
from nearfar.metrics.silhouette import silhouette
from nearfar.metrics.similarity import DISTANCES, check_norms, prepare_gallery, squared_norms
from nearfar.metrics.streaming import evaluate_blocks
from nearfar.ops.relations import PairList
from nearfar.validation import Array, Embeddings, Ints, Labels, as_embeddings, as_labels, check_choice

AGREEMENT = {"nmi": normalized_mutual_info, "ami": adjusted_mutual_info, "f1": pairwise_f1}


@torch.no_grad()
def evaluate(
    embeddings: Embeddings,
    labels: Labels | None = None,
    *,
    relation: ArrayLike | Tensor | PairList | None = None,
    hierarchy: Mapping[Any, Sequence[Any]] | None = None,
    queries: tuple[Embeddings, Labels | None] | None = None,
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
    """Measure how well embeddings retrieve and cluster samples with the same label.

    Rankings are exact unless `index` is given, and are computed block by block within `memory_mb`. Equal similarities
    are ordered by gallery index, as in a stable sort. Queries without a positive are excluded from all means and
    counted in `Scores.dropped`. The cosine of a zero vector with any vector is 0. A cutoff may be larger than the
    gallery (see `nearfar.metrics.retrieval`). Clustering metrics use `embeddings`, not `queries`, and need one label
    per sample.

    Args:
        embeddings: Tensor or array [N, d]. The vectors need not have unit length. Computations use float64 for float64
            embeddings and float32 for all others. Clustering always uses float32.
        labels: Integers or strings [N], or multi-hot vectors [N, C] for C classes. Samples that share a label are
            positives of each other. Pass None if `relation` is given.
        relation: The relations [Q, N] between Q queries and N samples, instead of labels: 1 for a positive pair, 0 for
            a negative pair, a grade between 0 and 1, or NaN for an unknown pair. Grades of at least 0.5 count as
            positive. Samples with NaN are left out of the ranking of the query. Without `queries`, Q is N, and the
            diagonal has no effect. Instead of a matrix, you can pass a list of pairs as a tuple (i, j, sign) of three
            sequences: the indices of queries, the indices of samples, and +1 for a positive or -1 for a negative pair.
            Pairs that are not listed are unknown.
        hierarchy: The ancestors of each label, from the parent to the root, for graded metrics: {"lion": ("felidae",
            "mammal"), ...}. The grade of a sample is the fraction of the query's label and ancestors that the sample
            shares. With multi-hot labels, `hierarchy` must be None, and the grade is the fraction of the query's labels
            that the sample shares. See `nearfar.metrics.graded`.
        queries: A pair (embeddings [Q, d], labels) for Q queries. The gallery `embeddings` is ranked for each query. If
            `relation` is given, the labels must be None. By default, every sample is a query, and all other samples are
            its gallery.
        ks: Cutoffs for metrics that are named without one, for example "recall".
        metrics: Names as in `nearfar.metrics.names`, for example "recall", "ndcg@10", "map@r", "mrr", "nmi".
        ignore: Gallery indices to leave out of the ranking of each query, as one list per query or as a bool mask
            [Q, N]. `protocols.same_camera` creates these lists for re-identification.
        distance: "cosine" or "euclidean".
        device: Device to compute on. By default, the device of the embeddings.
        memory_mb: Memory for a block of similarities, in MiB. It affects the speed, and the order of similarities that
            differ only by rounding.
        seeds: Seeds of k-means. nmi, ami and f1 are means over the seeds; `Scores.spread` has their standard
            deviations.
        index: A faiss index of the embeddings. For cosine, it must contain unit vectors. If given, its rankings replace
            the exact ones, except for graded metrics, which stay exact.
        index_sample: Number of queries on which the error of the index is measured (see `Scores.approximation`).

    Raises:
        ValueError: If an argument is invalid, or if no query has a positive.

    >>> scores = evaluate([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 1.0]], ["cat", "cat", "dog", "dog"])
    >>> scores["recall@1"], scores["map@r"], scores.dropped
    (1.0, 1.0, 0)
    """
    names = expand_names(metrics, ks)
    target = None if device is None else torch.device(device)
    rows = as_embeddings(embeddings, name="embeddings", device=target)
    searched, relations = _as_searched(queries, rows), None
    if relation is None:
        row_labels = as_labels(_required(labels, "labels"), len(rows), name="labels")
        searched_labels = row_labels
        if queries is not None:
            searched_labels = as_labels(_required(queries[1], "queries[1]"), len(searched), name="queries[1]")
    else:
        if labels is not None or hierarchy is not None or (queries is not None and queries[1] is not None):
            raise ValueError(
                "relation replaces labels and hierarchy: omit them, and pass queries, if any, as (embeddings, None)"
            )
        relations = as_relation(relation, len(searched), len(rows), same_set=queries is None)
        row_labels, searched_labels = np.arange(len(rows)), np.arange(len(searched))
    _check_options(distance, memory_mb, index_sample)
    squares = check_norms(rows, "embeddings")
    if queries is not None:
        check_norms(searched, "queries[0]")
    clustering = [name for name in names if name in CLUSTERING]
    if clustering and relations is not None:
        raise ValueError(f"{clustering[0]} needs labels, but relation was given: remove {clustering[0]} from metrics")
    graded = [name for name in names if is_graded(name)]
    retrieval = [name for name in names if name not in CLUSTERING and name not in graded]
    values, spread = _cluster(clustering, rows, row_labels, distance=distance, memory_mb=memory_mb, seeds=tuple(seeds))
    if not retrieval and not graded:
        return Scores(_ordered(names, values), 0, 0, len(rows), distance, spread)

    ignored = None if ignore is None else as_ignored(ignore, len(searched), len(rows))
    if relations is None:
        relevance = match_labels(row_labels, searched_labels)
        grades: Grades = LabelGrades(row_labels, searched_labels, hierarchy)
    else:
        relevance, grades = relations.relevance, relations
        ignored = relations.add_unknown(ignored)
    same_set = queries is None
    gallery = prepare_gallery(rows, squares, distance)

    def evaluate_exactly(sample: Ints) -> Columns:
        options: Any = {"same_set": same_set, "ignored": ignored, "memory_mb": memory_mb}
        return evaluate_blocks(retrieval, gallery, searched, relevance, rows=sample, **options)

    approximation = columns = None
    if index is None:
        if same_set and ignored is None and relations is None:
            columns = try_half_matrix(retrieval, gallery, relevance, memory_mb=memory_mb)
        if columns is None:
            columns = evaluate_exactly(np.arange(len(searched)))
    else:
        check_index(index, len(rows), rows.shape[1], distance)
        points = _as_points(searched, distance).cpu().numpy()
        columns = evaluate_with_index(retrieval, index, points, relevance, same_set=same_set, ignored=ignored)
        sample = np.sort(np.random.default_rng(0).permutation(len(searched))[:index_sample])
        approximation = measure_error(retrieval, columns, evaluate_exactly(sample), sample)
    if graded:
        columns |= evaluate_grades(
            graded, gallery, searched, grades, same_set=same_set, ignored=ignored, memory_mb=memory_mb
        )
    return _scores(names, values, spread, columns, searched_labels, len(rows), distance, approximation)


def _required(labels: Labels | None, name: str) -> Labels:
    if labels is None:
        raise ValueError(f"{name} is missing: pass labels, or relation instead")
    return labels


def _as_searched(queries: tuple[Embeddings, Labels | None] | None, rows: Tensor) -> Tensor:
    if queries is None:
        return rows
    if not isinstance(queries, tuple | list) or len(queries) != 2:
        raise ValueError(f"queries must be a pair (embeddings, labels), got {type(queries).__name__}")
    searched = as_embeddings(queries[0], name="queries[0]", device=rows.device)
    if searched.shape[1] != rows.shape[1]:
        raise ValueError(f"queries[0] has dimension {searched.shape[1]}, but embeddings have dimension {rows.shape[1]}")
    return searched


def _check_options(distance: str, memory_mb: int, index_sample: int) -> None:
    check_choice("distance", distance, DISTANCES)
    for name, value in (("memory_mb", memory_mb), ("index_sample", index_sample)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _as_points(rows: Tensor, distance: str) -> Tensor:
    """Return float32 vectors whose Euclidean distances give the same order as `distance`: unit vectors for cosine."""
    if distance == "euclidean":
        return rows.float()
    return rows.float() / squared_norms(rows).sqrt().clamp_min(1e-30)[:, None].float()


def _center(rows: Tensor, distance: str) -> Tensor:
    """Return the float32 vectors to cluster.

    For Euclidean distance, the mean is subtracted first, because a large common offset would reduce the precision.
    """
    return _as_points(rows, distance) if distance == "cosine" else (rows - rows.double().mean(0)).float()


def _cluster(
    names: Sequence[str],
    rows: Tensor,
    labels: Array,
    *,
    distance: str,
    memory_mb: int,
    seeds: tuple[int, ...],
) -> tuple[dict[str, float], dict[str, float]]:
    values: dict[str, float] = {}
    spread: dict[str, float] = {}
    if not names:
        return values, spread
    if labels.ndim != 1:
        raise ValueError(
            f"{names[0]} needs one label per sample, but labels are multi-hot of shape {labels.shape}: remove "
            f"{names[0]} from metrics"
        )
    if not seeds:
        raise ValueError("seeds is empty: pass at least one seed for k-means")
    points = _center(rows, distance)
    classes, codes = np.unique(labels, return_inverse=True)
    if "silhouette" in names:
        values["silhouette"] = silhouette(points, codes, distance=distance, memory_mb=memory_mb)
    agreements = [name for name in names if name in AGREEMENT]
    if agreements:
        table = points.cpu().numpy()
        clusters = [kmeans(table, len(classes), seed=seed) for seed in seeds]
        for name in agreements:
            results = [AGREEMENT[name](codes, assignment) for assignment in clusters]
            values[name], spread[name] = float(np.mean(results)), float(np.std(results))
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
    rows = np.flatnonzero(columns["positives"] > 0)
    if not len(rows):
        raise ValueError(
            f"none of the {len(labels)} queries has a positive in the gallery of {size} samples: check that queries "
            "share labels with other samples of the gallery, or have relations of at least 0.5, and that ignore does "
            "not exclude all positives"
        )
    columns = {name: column[rows] for name, column in columns.items()}
    means = {name: float(columns[name].mean()) for name in names if name in columns}
    return Scores(
        means=_ordered(names, values | means),
        queries=len(rows),
        dropped=len(labels) - len(rows),
        gallery=size,
        distance=distance,
        spread=spread,
        approximation=approximation,
        rows=rows,
        labels=labels[rows],
        columns=columns,
    )


def _ordered(names: Sequence[str], values: dict[str, float]) -> dict[str, float]:
    return {name: values[name] for name in names}
