"""Metrics of graded relevance: some samples are more relevant to a query than others.

The grade g of a gallery sample is between 0 and 1. It is the fraction of the query's labels that the sample shares. In
a hierarchy, the labels of a query are its class and the ancestors of its class. A relation matrix gives the grades
directly. With one label per sample and no hierarchy, grades are 0 or 1, and the metrics below equal ndcg@k and map.

Let g_1, g_2, ... be the grades in the order of the ranking, and n(g) the number of samples with grade g. Then:

    graded-ndcg@k   sum_{i <= k} g_i / log2(1 + i), divided by its largest value over all rankings
    h-ap            sum_i ( sum_{j <= i} min(rel_i, rel_j) ) / i  /  sum_i rel_i  over the i with g_i > 0, with
                    rel_i = g_i / n(g_i): hierarchical average precision (Ramzi et al., HAPPIER, ECCV 2022,
                    arXiv 2207.04873, with alpha = 1)

The released code of HAPPIER computes NDCG with the gain 2^l - 1 for l shared levels. Here the gain is the grade, as in
scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nearfar.metrics.names import parse_cutoff
from nearfar.metrics.retrieval import Columns
from nearfar.metrics.similarity import Gallery
from nearfar.metrics.streaming import MAX_ROWS, leave_out
from nearfar.validation import Array, Floats, Ints


class Grades(Protocol):
    """The grades of gallery samples."""

    def rows(self, queries: Ints) -> Floats:
        """Return the grades [len(queries), N] of all gallery samples for some queries."""
        ...


class LabelGrades:
    """Grades from labels: the fraction of the query's labels that a gallery sample shares.

    Args:
        gallery: Labels of the gallery [N], or multi-hot [N, C].
        queries: Labels of the queries.
        hierarchy: The ancestors of each label, from the parent to the root, or None.
    """

    def __init__(self, gallery: Array, queries: Array, hierarchy: Mapping[Any, Sequence[Any]] | None) -> None:
        self.is_multi_hot = gallery.ndim == 2
        self.gallery, self.queries = gallery, queries
        if self.is_multi_hot:
            if hierarchy is not None:
                raise ValueError("hierarchy needs one label per sample, but labels are multi-hot: remove hierarchy")
            return
        names, codes = np.unique(np.concatenate([gallery, queries]), return_inverse=True)
        paths = codes[:, None] if hierarchy is None else level_ids(names.tolist(), hierarchy)[codes]
        self.gallery, self.queries = paths[: len(gallery)], paths[len(gallery) :]

    def rows(self, queries: Ints) -> Floats:
        own = self.queries[queries]
        shared = np.zeros((len(own), len(self.gallery)))
        if self.is_multi_hot:
            shared += own.astype(np.float32) @ self.gallery.T.astype(np.float32)
            shared /= np.maximum(own.sum(1), 1)[:, None]
            return shared
        for level in range(own.shape[1]):
            shared += own[:, [level]] == self.gallery[:, level]
        shared /= own.shape[1]
        return shared


def level_ids(names: Sequence[Any], hierarchy: Mapping[Any, Sequence[Any]]) -> Ints:
    """Return ids [len(names), 1 + L] of labels and their L ancestors.

    In a column, two ids are equal if and only if the paths from that level to the root are equal.

    >>> level_ids(["cat", "dog", "oak"], {"cat": ["animal"], "dog": ["animal"], "oak": ["plant"]}).tolist()
    [[0, 0], [1, 0], [2, 1]]
    """
    missing = [name for name in names if name not in hierarchy]
    if missing:
        raise ValueError(f"hierarchy has no entry for the label {missing[0]!r}: add its ancestors")
    chains = [(name, *hierarchy[name]) for name in names]
    if len({len(chain) for chain in chains}) > 1:
        raise ValueError(
            "hierarchy must have the same number of ancestors for every label: repeat the last ancestor where needed"
        )
    columns = []
    for level in range(len(chains[0])):
        number: dict[Any, int] = {}
        columns.append([number.setdefault(chain[level:], len(number)) for chain in chains])
    return np.array(columns, dtype=np.int64).T


def evaluate_grades(
    names: Sequence[str],
    gallery: Gallery,
    queries: Tensor,
    grades: Grades,
    *,
    same_set: bool,
    ignored: Sequence[Ints] | None,
    memory_mb: int,
) -> Columns:
    """Compute graded metrics of all Q queries, each [Q]. The value is NaN for a query whose grades are all 0."""
    size, device = len(gallery.rows), gallery.rows.device
    columns = {name: np.full(len(queries), np.nan) for name in names}
    # For each query, memory is needed for the similarities, their order, and about four float64 values per sample.
    step = min(max(memory_mb * 2**20 // (48 * size), 1), MAX_ROWS)
    for start in range(0, len(queries), step):
        block = np.arange(start, min(start + step, len(queries)))
        scores = torch.empty(len(block), size, dtype=gallery.dtype, device=device)
        gallery.similarities(queries[torch.from_numpy(block).to(queries.device)], scores)
        leave_out(scores, block, same_set, ignored)
        order = scores.argsort(dim=1, descending=True, stable=True).cpu().numpy()
        ranked = np.take_along_axis(grades.rows(block), order, axis=1)
        is_left_out = (scores == -torch.inf).cpu().numpy()
        # The samples that are left out are ranked last, so the positions of the others do not change.
        ranked[np.take_along_axis(is_left_out, order, axis=1)] = 0.0
        ranked = np.nan_to_num(ranked)
        for name in names:
            k = parse_cutoff(name)
            columns[name][block] = hierarchical_ap(ranked) if k is None else graded_ndcg(ranked, k)
    return columns


def graded_ndcg(grades: Floats, k: int) -> Floats:
    """Compute graded-ndcg@k of b rankings, [b], from their grades [b, N] in ranked order. NaN if all grades are 0.

    >>> graded_ndcg(np.array([[1.0, 0.5, 0.0], [0.0, 0.0, 1.0]]), 3).tolist()
    [1.0, 0.5]
    """
    discount = 1 / np.log2(2.0 + np.arange(min(k, grades.shape[1])))
    best = -np.sort(-grades, axis=1)
    found, ideal = (part[:, : len(discount)] @ discount for part in (grades, best))
    with np.errstate(invalid="ignore"):
        value: Floats = found / ideal
    return value


def hierarchical_ap(grades: Floats) -> Floats:
    """Compute h-ap of b rankings, [b], from their grades [b, N] in ranked order. NaN if all grades are 0.

    >>> hierarchical_ap(np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 1.0]])).round(4).tolist()
    [1.0, 0.5833]
    """
    return np.array([_one_hierarchical_ap(row) for row in grades])


def _one_hierarchical_ap(grades: Floats) -> float:
    positions = np.flatnonzero(grades > 0)
    if not len(positions):
        return float("nan")
    values, kind, counts = np.unique(grades[positions], return_inverse=True, return_counts=True)
    by_kind = values / counts
    relevance = by_kind[kind]
    h_rank = np.zeros(len(positions))
    for number, value in enumerate(by_kind):  # one pass per grade avoids a matrix of all pairs
        h_rank += np.cumsum(kind == number) * np.minimum(relevance, value)
    return float((h_rank / (positions + 1)).sum() / relevance.sum())
