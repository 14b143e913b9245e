"""The positives of each query: gallery samples that share a label with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.validation import Array, Ints


@dataclass(frozen=True)
class Relevance:
    """The gallery samples of each class and the classes of each query, in flat arrays.

    With one label per sample, memory is O(Q + N) for Q queries and N gallery samples, instead of O(Q N) for a mask.

    Attributes:
        members: Gallery indices by class. members[starts[c] : starts[c + 1]] are those of class c, ascending.
        starts: See `members`.
        classes: Class numbers by query. classes[class_starts[q] : class_starts[q + 1]] are those of query q.
        class_starts: See `classes`.
        gallery: Size of the gallery.
    """

    members: Ints
    starts: Ints
    classes: Ints
    class_starts: Ints
    gallery: int

    def max_positives(self) -> Ints:
        """Return an upper bound on the number of positives of each query. The bound may count the query itself."""
        sizes = np.diff(self.starts)
        total = np.concatenate([[0], np.cumsum(sizes[self.classes])])
        bound: Ints = np.minimum(total[self.class_starts[1:]] - total[self.class_starts[:-1]], self.gallery)
        return bound

    def positives(self, rows: Ints) -> Ints:
        """Return the gallery indices [len(rows), W] of the positives of the queries `rows`, ascending.

        W is the largest number of positives of these queries. Shorter lists are padded with -1. If the query is in the
        gallery, its own index is included.
        """
        counts = self.class_starts[rows + 1] - self.class_starts[rows]
        if (counts == 1).all():
            first = self.classes[self.class_starts[rows]]
            begin, size = self.starts[first], self.starts[first + 1] - self.starts[first]
            column = np.arange(max(int(size.max(initial=0)), 1))
            inside = column < size[:, None]
            if not len(self.members):
                return np.full(inside.shape, -1, dtype=np.int64)
            return np.where(inside, self.members[np.where(inside, begin[:, None] + column, 0)], -1)
        unions = [self._union(row) for row in rows]
        table = np.full((len(rows), max(1, *map(len, unions))), -1, dtype=np.int64)
        for out, union in zip(table, unions, strict=True):
            out[: len(union)] = union
        return table

    def _union(self, row: int) -> Ints:
        marked = np.zeros(self.gallery, dtype=bool)
        for label in self.classes[self.class_starts[row] : self.class_starts[row + 1]]:
            marked[self.members[self.starts[label] : self.starts[label + 1]]] = True
        return np.flatnonzero(marked)


def match_labels(gallery: Array, queries: Array) -> Relevance:
    """Return the positives of each query: the gallery samples that have its label.

    With multi-hot labels, a positive has at least one label in common with the query.

    >>> relevance = match_labels(np.array([7, 9, 7]), np.array([7, 8]))
    >>> relevance.positives(np.array([0])).tolist(), relevance.max_positives().tolist()
    ([[0, 2]], [2, 0])
    """
    _check_same_kind(gallery, queries)
    if gallery.ndim == 2:
        indices, codes = np.nonzero(gallery)
        owners, query_codes = np.nonzero(queries)
        classes = gallery.shape[1]
    else:
        names, inverse = np.unique(np.concatenate([gallery, queries]), return_inverse=True)
        indices, codes = np.arange(len(gallery)), inverse[: len(gallery)]
        owners, query_codes = np.arange(len(queries)), inverse[len(gallery) :]
        classes = len(names)
    order = np.argsort(codes, kind="stable")
    return Relevance(
        members=indices[order],
        starts=_offsets(codes, classes),
        classes=query_codes,
        class_starts=_offsets(owners, len(queries)),
        gallery=len(gallery),
    )


def _offsets(codes: Ints, groups: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=groups))])


def _check_same_kind(gallery: Array, queries: Array) -> None:
    """Check that both are integers, both strings, or both multi-hot labels of the same width."""
    kinds = [("text" if a.dtype.kind in "US" else "integer", *a.shape[1:]) for a in (gallery, queries)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"labels of queries ({queries.dtype}, shape {queries.shape}) and gallery ({gallery.dtype}, shape "
            f"{gallery.shape}) must be of one kind: both integers, both strings, or multi-hot of the same width"
        )


def as_ignored(ignore: Sequence[ArrayLike] | Array | Tensor, queries: int, gallery: int) -> list[Ints]:
    """Return the gallery indices to ignore for each query, from one list of indices per query or a bool mask [Q, N]."""
    table = ignore.detach().cpu().numpy() if isinstance(ignore, Tensor) else ignore
    if isinstance(table, np.ndarray) and table.dtype == bool:
        if table.shape != (queries, gallery):
            raise ValueError(f"ignore as a mask must have shape {(queries, gallery)}, got {table.shape}")
        return [np.flatnonzero(row) for row in table]
    if len(table) != queries:
        raise ValueError(f"ignore must have one index list for each of the {queries} queries, got {len(table)}")
    return [_as_indices(row, query, gallery) for query, row in enumerate(table)]


def _as_indices(row: ArrayLike, query: int, gallery: int) -> Ints:
    indices = np.asarray(row)
    if not indices.size:
        return np.zeros(0, dtype=np.int64)
    if indices.dtype.kind not in "iu" or indices.ndim != 1:
        raise ValueError(
            f"ignore[{query}] must be a list of gallery indices, got {indices.dtype} of shape {indices.shape}"
        )
    if indices.min() < 0 or indices.max() >= gallery:
        raise ValueError(f"ignore[{query}] has indices outside the gallery of {gallery} samples")
    return indices.astype(np.int64)
