"""Who is a positive of whom: gallery rows that share a label with the query."""

from dataclasses import dataclass

import numpy as np

from nearfar.metrics.inputs import Array, Ints, same_kind


@dataclass(frozen=True)
class Relevance:
    """Class members in the gallery and classes of each query, both as offsets into one flat array.

    `members[starts[c]:starts[c + 1]]` are the gallery rows of class c in ascending order, and
    `classes[class_starts[q]:class_starts[q + 1]]` the classes of query q. Memory is O(labels), never O(Q * N).
    """

    members: Ints
    starts: Ints
    classes: Ints
    class_starts: Ints
    gallery: int

    def at_most(self) -> Ints:
        """An upper bound, for each query, of its positives (the query itself counts if it is in the gallery)."""
        sizes = np.diff(self.starts)
        total = np.concatenate([[0], np.cumsum(sizes[self.classes])])
        bound: Ints = np.minimum(total[self.class_starts[1:]] - total[self.class_starts[:-1]], self.gallery)
        return bound

    def positions(self, rows: Ints) -> Ints:
        """Gallery positions of the positives of these queries, [len(rows), W], ascending, padded with -1."""
        counts = self.class_starts[rows + 1] - self.class_starts[rows]
        if (counts == 1).all():
            first = self.classes[self.class_starts[rows]]
            begin, size = self.starts[first], self.starts[first + 1] - self.starts[first]
            column = np.arange(max(int(size.max(initial=0)), 1))
            inside = column < size[:, None]
            return np.where(inside, self.members[np.where(inside, begin[:, None] + column, 0)], -1)
        unions = [self._union(row) for row in rows]
        table = np.full((len(rows), max(1, *map(len, unions))), -1, dtype=np.int64)
        for line, union in zip(table, unions, strict=True):
            line[: len(union)] = union
        return table

    def _union(self, row: int) -> Ints:
        marked = np.zeros(self.gallery, dtype=bool)
        for label in self.classes[self.class_starts[row] : self.class_starts[row + 1]]:
            marked[self.members[self.starts[label] : self.starts[label + 1]]] = True
        return np.flatnonzero(marked)


def relevance(gallery: Array, queries: Array) -> Relevance:
    """Relevance of gallery labels to query labels: equal labels, or for multi-hot at least one label in common.

    >>> who = relevance(np.array([7, 9, 7]), np.array([7, 8]))
    >>> who.positions(np.array([0])).tolist(), who.at_most().tolist()
    ([[0, 2]], [2, 0])
    """
    same_kind(gallery, queries)
    if gallery.ndim == 2:
        places, codes = np.nonzero(gallery)
        owners, query_codes = np.nonzero(queries)
        classes = gallery.shape[1]
    else:
        names, inverse = np.unique(np.concatenate([gallery, queries]), return_inverse=True)
        places, codes = np.arange(len(gallery)), inverse[: len(gallery)]
        owners, query_codes = np.arange(len(queries)), inverse[len(gallery) :]
        classes = len(names)
    order = np.argsort(codes, kind="stable")
    return Relevance(
        members=places[order],
        starts=_offsets(codes, classes),
        classes=query_codes,
        class_starts=_offsets(owners, len(queries)),
        gallery=len(gallery),
    )


def _offsets(codes: Ints, groups: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=groups))])
