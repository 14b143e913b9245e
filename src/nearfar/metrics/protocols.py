"""Evaluation protocols of the benchmarks: metrics, query and gallery sets, folds, and class-disjoint splits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.metrics.evaluation import evaluate
from nearfar.metrics.scores import Scores
from nearfar.metrics.similarity import squared_norms
from nearfar.validation import Array, Embeddings, Ints, Labels, as_class_labels, as_embeddings, check_choice


@dataclass(frozen=True)
class Protocol:
    """The metrics that papers report for a benchmark.

    Attributes:
        recall: Cutoffs of Recall@k.
        ndcg: Cutoffs of nDCG@k.
        gallery: Whether the gallery is a separate set. If not, every sample is a query against all others.
    """

    recall: tuple[int, ...]
    ndcg: tuple[int, ...] = ()
    gallery: bool = False

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics."""
        return (*(f"recall@{k}" for k in self.recall), "map@r", "r-precision", *(f"ndcg@{k}" for k in self.ndcg))


PROTOCOLS = {
    "cub": Protocol((1, 2, 4, 8, 16, 32), (2, 4, 8)),
    "cars": Protocol((1, 2, 4, 8, 16, 32), (2, 4, 8)),
    "sop": Protocol((1, 10, 100, 1000), (10, 100)),
    "in-shop": Protocol((1, 10, 20, 30, 40, 50), gallery=True),
    # the cutoffs in the paper on balanced self-paced metric learning (BSPML, arXiv 2211.11751)
    "sop-bspml": Protocol((1, 8, 16, 32, 64, 128)),
    "in-shop-bspml": Protocol((1, 2, 4, 8, 16, 32), gallery=True),
}


def evaluate_as(
    benchmark: str,
    embeddings: Embeddings,
    labels: Labels,
    *,
    queries: tuple[Embeddings, Labels] | None = None,
    extra: Iterable[str] = (),
) -> Scores:
    """Evaluate with the metrics that papers report for a benchmark.

    Args:
        benchmark: A key of `PROTOCOLS`.
        embeddings: See `evaluate`.
        labels: See `evaluate`.
        queries: See `evaluate`. Required for In-Shop, and not allowed for the other benchmarks.
        extra: Names of further metrics, for example "nmi" and "f1".

    >>> scores = evaluate_as("sop", [[0.0, 1.0], [0.1, 1.0], [1.0, 0.0]], [7, 7, 8])
    >>> scores["recall@1000"], scores.dropped
    (1.0, 1)
    """
    protocol = PROTOCOLS[check_choice("benchmark", benchmark, PROTOCOLS)]
    if protocol.gallery and queries is None:
        raise ValueError(f"{benchmark} has separate query and gallery sets: pass queries=(embeddings, labels)")
    if not protocol.gallery and queries is not None:
        raise ValueError(f"{benchmark} compares every sample with all others: omit queries, or call evaluate")
    return evaluate(embeddings, labels, queries=queries, metrics=(*protocol.metrics(), *extra))


def first_half(labels: Labels) -> tuple[Ints, Ints]:
    """Return the sample indices of the first and of the second half of the sorted classes.

    These are the training and test sets of CUB and Cars.

    >>> [rows.tolist() for rows in first_half(["b", "a", "c", "d"])]
    [[0, 1], [2, 3]]
    """
    names, codes = _codes(labels)
    front = codes < (len(names) + 1) // 2
    return np.flatnonzero(front), np.flatnonzero(~front)


def mlrc_folds(labels: Labels, folds: int = 4) -> list[tuple[Ints, Ints]]:
    """Return the sample indices (train, validation) of each fold. The two parts of a fold share no class.

    Each fold holds out a contiguous part of the sorted classes, as in Musgrave et al., A Metric Learning Reality Check
    (MLRC), ECCV 2020. The sizes of these parts differ by at most one class, and larger parts come first, as in
    scikit-learn's KFold: 98 classes are split into 25, 25, 24 and 24.

    >>> [len(set(held_out)) for _, held_out in mlrc_folds(range(98))]
    [25, 25, 24, 24]
    """
    names, codes = _codes(labels)
    if not 2 <= folds <= len(names):
        raise ValueError(f"folds must be between 2 and the number of classes ({len(names)}), got {folds}")
    parts = [np.isin(codes, part) for part in np.array_split(np.arange(len(names)), folds)]
    return [(np.flatnonzero(~held_out), np.flatnonzero(held_out)) for held_out in parts]


def class_disjoint_split(labels: Labels, *, fraction: float = 0.2, seed: int | None = 0) -> tuple[Ints, Ints]:
    """Return sample indices (train, validation) that share no class, like the training and test sets of the benchmarks.

    Args:
        labels: Labels [N].
        fraction: Fraction of the classes to hold out. At least one class is held out, and at least one is kept.
        seed: Seed of the random choice of classes. None holds out the last classes in sorted order.

    >>> train, held_out = class_disjoint_split([3, 3, 1, 2], fraction=0.3, seed=None)
    >>> train.tolist(), held_out.tolist()
    ([2, 3], [0, 1])
    """
    names, codes = _codes(labels)
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be above 0 and below 1, got {fraction}")
    if len(names) < 2:
        raise ValueError(f"labels has only {len(names)} class: a class-disjoint split needs at least two")
    count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    order = np.arange(len(names)) if seed is None else np.random.default_rng(seed).permutation(len(names))
    held_out = np.isin(codes, order[-count:])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def concatenate(models: Sequence[Embeddings]) -> Tensor:
    """Normalize the embeddings of each model and concatenate them, as in Musgrave et al., ECCV 2020 (MLRC).

    >>> concatenate([[[3.0, 4.0]], [[2.0]]]).tolist()
    [[0.6000000238418579, 0.800000011920929, 1.0]]
    """
    if not len(models):
        raise ValueError("models is empty: pass the embeddings of at least one model")
    parts = [as_embeddings(model, name=f"models[{i}]").float() for i, model in enumerate(models)]
    if len({len(part) for part in parts}) > 1:
        raise ValueError(f"models must all embed the same samples, got {[len(part) for part in parts]} embeddings")
    return torch.cat([part / squared_norms(part).sqrt().clamp_min(1e-30)[:, None].float() for part in parts], dim=1)


@dataclass(frozen=True, eq=False)
class FoldScores:
    """Test scores of the models of all folds.

    Attributes:
        separated: The scores of each model.
        concatenated: The scores of the concatenated embeddings of all models.
    """

    separated: tuple[Scores, ...]
    concatenated: Scores

    def mean(self) -> dict[str, float]:
        """Return the mean of each metric over the separated models."""
        return {name: float(np.mean([scores[name] for scores in self.separated])) for name in self.separated[0]}


def evaluate_folds(
    models: Sequence[Embeddings], labels: Labels, *, metrics: Iterable[str] = ("recall@1", "r-precision", "map@r")
) -> FoldScores:
    """Compute the separated and concatenated test scores of A Metric Learning Reality Check (MLRC, ECCV 2020).

    Args:
        models: Test embeddings from the model of each fold. MLRC uses 4 models with 128 dimensions each.
        labels: Labels of the test samples.
        metrics: See `evaluate`.
    """
    joined = concatenate(models)
    names = tuple(metrics)
    return FoldScores(
        separated=tuple(evaluate(model, labels, metrics=names) for model in models),
        concatenated=evaluate(joined, labels, metrics=names),
    )


def same_camera(labels: Labels, cameras: Labels, *, queries: tuple[Labels, Labels] | None = None) -> list[Ints]:
    """Return the argument `ignore` of `evaluate` for re-identification.

    For each query, it contains the indices of the gallery samples that have both its label and its camera.

    Args:
        labels: Labels of the gallery.
        cameras: Cameras of the gallery.
        queries: (labels, cameras) of the queries. By default, every gallery sample is a query.

    >>> [rows.tolist() for rows in same_camera([5, 5, 6], [1, 1, 1], queries=([5, 6], [1, 2]))]
    [[0, 1], []]
    """
    gallery = _pairs(labels, cameras)
    indices: dict[tuple[object, object], list[int]] = {}
    for index, key in enumerate(gallery):
        indices.setdefault(key, []).append(index)
    members = {key: np.array(value, dtype=np.int64) for key, value in indices.items()}
    return [members.get(key, np.zeros(0, dtype=np.int64)) for key in (_pairs(*queries) if queries else gallery)]


def _pairs(labels: Labels, cameras: Labels) -> list[tuple[object, object]]:
    names, views = as_class_labels(labels), as_class_labels(cameras, name="cameras")
    if len(names) != len(views):
        raise ValueError(f"labels and cameras must have the same length, got {len(names)} and {len(views)}")
    return list(zip(names.tolist(), views.tolist(), strict=True))


def _codes(labels: Labels) -> tuple[Array, Ints]:
    names, codes = np.unique(as_class_labels(labels), return_inverse=True)
    return names, codes
