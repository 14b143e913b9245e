"""The evaluation protocols of the benchmarks: cut-offs, query and gallery, folds, and validation without leaks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.metrics.evaluation import evaluate
from nearfar.metrics.scores import Scores
from nearfar.metrics.similarity import squared_lengths
from nearfar.validation import Array, Embeddings, Ints, Labels, as_class_labels, as_embeddings


@dataclass(frozen=True)
class Protocol:
    """What a benchmark reports: Recall@`recall`, nDCG@`ndcg`, MAP@R; `gallery` says that queries come apart."""

    recall: tuple[int, ...]
    ndcg: tuple[int, ...] = ()
    gallery: bool = False

    def metrics(self) -> tuple[str, ...]:
        return (*(f"recall@{k}" for k in self.recall), "map@r", "r-precision", *(f"ndcg@{k}" for k in self.ndcg))


PROTOCOLS = {
    "cub": Protocol((1, 2, 4, 8, 16, 32), (2, 4, 8)),
    "cars": Protocol((1, 2, 4, 8, 16, 32), (2, 4, 8)),
    "sop": Protocol((1, 10, 100, 1000), (10, 100)),
    "in-shop": Protocol((1, 10, 20, 30, 40, 50), gallery=True),
    # The lists that the BSPML paper prints instead.
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
    """`evaluate` with the metrics of a benchmark's tables, plus `extra` ones (for example "nmi", "f1").

    In-Shop needs `queries` against the gallery; the others search within one set.

    >>> scores = evaluate_as("sop", [[0.0, 1.0], [0.1, 1.0], [1.0, 0.0]], [7, 7, 8])
    >>> scores["recall@1000"], scores.dropped
    (1.0, 1)
    """
    if benchmark not in PROTOCOLS:
        raise ValueError(f"benchmark must be one of {', '.join(PROTOCOLS)}, got {benchmark!r}")
    protocol = PROTOCOLS[benchmark]
    if protocol.gallery and queries is None:
        raise ValueError(f"{benchmark} searches queries in a gallery: pass queries=(embeddings, labels)")
    if not protocol.gallery and queries is not None:
        raise ValueError(f"{benchmark} searches within one set: leave out queries (or call evaluate)")
    return evaluate(embeddings, labels, queries=queries, metrics=(*protocol.metrics(), *extra))


def first_half(labels: Labels) -> tuple[Ints, Ints]:
    """Rows of the first and of the second half of the sorted classes: train and test of CUB and Cars.

    >>> [rows.tolist() for rows in first_half(["b", "a", "c", "d"])]
    [[0, 1], [2, 3]]
    """
    names, codes = _codes(labels)
    front = codes < (len(names) + 1) // 2
    return np.flatnonzero(front), np.flatnonzero(~front)


def mlrc_folds(labels: Labels, folds: int = 4) -> list[tuple[Ints, Ints]]:
    """Rows of (train, validation) for each class-disjoint fold: contiguous parts of the sorted classes, no shuffling.

    Musgrave et al., A Metric Learning Reality Check, ECCV 2020. Sizes differ by at most one and larger parts
    come first, as in KFold: 98 classes make 25, 25, 24, 24.

    >>> [len(set(held_out)) for _, held_out in mlrc_folds(range(98))]
    [25, 25, 24, 24]
    """
    names, codes = _codes(labels)
    if not 2 <= folds <= len(names):
        raise ValueError(f"folds must be between 2 and the {len(names)} classes of labels, got {folds}")
    parts = [np.isin(codes, part) for part in np.array_split(np.arange(len(names)), folds)]
    return [(np.flatnonzero(~held_out), np.flatnonzero(held_out)) for held_out in parts]


def class_disjoint_split(labels: Labels, *, fraction: float = 0.2, seed: int | None = 0) -> tuple[Ints, Ints]:
    """Rows of (train, validation) that share no class, so that validation asks what the test set asks: new classes.

    `fraction` is the share of classes held out (at least one, and one is left). `seed=None` holds out the
    last classes in sorted order instead of random ones.

    >>> train, held_out = class_disjoint_split([3, 3, 1, 2], fraction=0.3, seed=None)
    >>> train.tolist(), held_out.tolist()
    ([2, 3], [0, 1])
    """
    names, codes = _codes(labels)
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction}")
    if len(names) < 2:
        raise ValueError(f"labels has {len(names)} class: a class-disjoint split needs two")
    count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    order = np.arange(len(names)) if seed is None else np.random.default_rng(seed).permutation(len(names))
    held_out = np.isin(codes, order[-count:])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def concatenated(models: Sequence[Embeddings]) -> Tensor:
    """One embedding from several models': each normalized, side by side (MLRC's concatenated evaluation).

    >>> concatenated([[[3.0, 4.0]], [[2.0]]]).tolist()
    [[0.6000000238418579, 0.800000011920929, 1.0]]
    """
    if not len(models):
        raise ValueError("models is empty: pass the embeddings of at least one model")
    parts = [as_embeddings(each, name=f"models[{i}]").float() for i, each in enumerate(models)]
    if len({len(part) for part in parts}) > 1:
        raise ValueError(f"models must embed the same rows, got {[len(part) for part in parts]} rows")
    return torch.cat([part / squared_lengths(part).sqrt().clamp_min(1e-30)[:, None].float() for part in parts], dim=1)


@dataclass(frozen=True, eq=False)
class FoldScores:
    """Test scores of a model for each fold, on its own (`separated`) and of their concatenation."""

    separated: tuple[Scores, ...]
    concatenated: Scores

    def mean(self) -> dict[str, float]:
        """Mean over the separated models of each metric."""
        return {name: float(np.mean([each[name] for each in self.separated])) for name in self.separated[0]}


def evaluate_folds(
    models: Sequence[Embeddings], labels: Labels, *, metrics: Iterable[str] = ("recall@1", "r-precision", "map@r")
) -> FoldScores:
    """MLRC's two test numbers from the test embeddings of the folds' models (4 of 128 dimensions there)."""
    joined = concatenated(models)
    names = tuple(metrics)
    return FoldScores(
        separated=tuple(evaluate(each, labels, metrics=names) for each in models),
        concatenated=evaluate(joined, labels, metrics=names),
    )


def same_camera(labels: Labels, cameras: Labels, *, queries: tuple[Labels, Labels] | None = None) -> list[Ints]:
    """`ignore` of re-identification: for each query the gallery rows of the same label seen by the same camera.

    `queries` are (labels, cameras) of the queries; without it the gallery is searched for its own rows.

    >>> [rows.tolist() for rows in same_camera([5, 5, 6], [1, 1, 1], queries=([5, 6], [1, 2]))]
    [[0, 1], []]
    """
    seen = _pairs(labels, cameras)
    asked = seen if queries is None else _pairs(*queries)
    rows: dict[tuple[object, object], list[int]] = {}
    for row, key in enumerate(seen):
        rows.setdefault(key, []).append(row)
    members = {key: np.array(value, dtype=np.int64) for key, value in rows.items()}
    return [members.get(key, np.zeros(0, dtype=np.int64)) for key in asked]


def _pairs(labels: Labels, cameras: Labels) -> list[tuple[object, object]]:
    names, views = as_class_labels(labels), as_class_labels(cameras, name="cameras")
    if len(names) != len(views):
        raise ValueError(f"labels and cameras must have one entry a row, got {len(names)} and {len(views)}")
    return list(zip(names.tolist(), views.tolist(), strict=True))


def _codes(labels: Labels) -> tuple[Array, Ints]:
    names, codes = np.unique(as_class_labels(labels), return_inverse=True)
    return names, codes
