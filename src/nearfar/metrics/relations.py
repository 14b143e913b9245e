"""Evaluation with relations between queries and gallery samples instead of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.metrics.relevance import Relevance
from nearfar.ops.relations import PairList, relation_of_pairs
from nearfar.validation import Array, Floats, Ints

POSITIVE = 0.5  # for metrics that do not use grades, a pair is positive if its grade is at least this value


@dataclass(frozen=True)
class Relation:
    """A matrix of relations [Q, N]: 1 for positive, 0 for negative, a grade in between, or NaN for unknown."""

    matrix: Array

    @property
    def relevance(self) -> Relevance:
        """Return the positives of each query. In the result, every query has its own class, made of its positives."""
        owner, members = np.nonzero(self.matrix >= POSITIVE)  # NaN is never positive
        queries = len(self.matrix)
        return Relevance(
            members=members,
            starts=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=queries))]),
            classes=np.arange(queries),
            class_starts=np.arange(queries + 1),
            gallery=self.matrix.shape[1],
        )

    def add_unknown(self, ignored: Sequence[Ints] | None) -> list[Ints] | None:
        """Return the gallery indices to ignore for each query: those in `ignored` and those of unknown relation."""
        unknown = np.isnan(self.matrix)
        if not unknown.any():
            return None if ignored is None else list(ignored)
        rows = [np.flatnonzero(row) for row in unknown]
        return rows if ignored is None else [np.union1d(*both) for both in zip(rows, ignored, strict=True)]

    def rows(self, queries: Ints) -> Floats:
        """Return the grades [len(queries), N] of all gallery samples for some queries."""
        return self.matrix[queries].astype(np.float64)


def as_relation(relation: ArrayLike | Tensor | PairList, queries: int, gallery: int, *, same_set: bool) -> Relation:
    """Check a matrix of relations or a tuple (i, j, sign) that lists pairs, and convert it to a `Relation`.

    `nearfar.ops.relations.relation_of_pairs` describes the tuple. `queries` and `gallery` are the numbers of samples.
    With `same_set`, the queries are the gallery, and a listed pair (i, j) also relates j to i.

    Raises:
        ValueError: If the shape is not [queries, gallery], or a value is neither NaN nor between 0 and 1.
    """
    if isinstance(relation, tuple) and len(relation) == 3:
        relation = relation_of_pairs(*relation, queries, None if same_set else gallery)
    array = relation.detach().cpu().numpy() if isinstance(relation, Tensor) else np.asarray(relation)
    if array.shape != (queries, gallery):
        raise ValueError(f"relation must have shape {[queries, gallery]}, got {list(array.shape)}")
    if array.dtype.kind not in "bfiu":
        raise ValueError(f"relation must be boolean or numeric, got {array.dtype}")
    matrix = array.astype(np.float32 if array.dtype.kind in "biu" else array.dtype)
    bad = ~(np.isnan(matrix) | ((matrix >= 0) & (matrix <= 1)))
    if bad.any():
        i, j = np.argwhere(bad)[0]
        raise ValueError(f"relation must be between 0 and 1, or NaN, got {matrix[i, j]} at [{i}, {j}]")
    return Relation(matrix)
