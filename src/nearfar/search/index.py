"""Index: find the vectors nearest to a query by cosine distance, exactly or approximately."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from nearfar.search.approximate import APPROXIMATE, KINDS, MIN_VECTORS, ApproximateIndex, choose_kind
from nearfar.search.exact import Neighbors, Vectors, accept_order, rank_candidates, search_exact
from nearfar.search.inputs import (
    as_class_numbers,
    as_float32,
    as_unit_vectors,
    assign_ids,
    check_classes,
    check_finite,
    name_samples,
    number_classes,
)
from nearfar.search.part import Part
from nearfar.search.recall import measure_recall
from nearfar.spelling import suggest
from nearfar.validation import Embeddings, Ints, check_choice, check_count

if TYPE_CHECKING:
    from nearfar.data.python_dataset import Source
    from nearfar.model import Model

# A faiss index is rebuilt when more than this fraction of its vectors has been removed.
MAX_REMOVED_SHARE = 0.25
TUNING_QUERIES = 100


class Index:
    """A searchable collection of N samples.

    Several threads can search an index at the same time, but not while samples are added or removed.

    Attributes:
        vectors: float32 unit vectors [N, dim]. A zero vector stays zero and has distance 1 to everything.
        ids: Distinct integers [N]. A sample keeps its id when other samples are added or removed.
        labels: Indices [N] into `classes`. None if the samples have no labels.
        classes: Class names.
        names: Names of the samples [N]: paths, the first words of texts, or names like "row 17".
        kind: "exact", "hnsw", "ivf-pq", "int8" or "binary".
        parts: The datasets that the samples come from (see `Part`).
        model: The sha256 of the weights that computed the vectors, "" if unknown.

    >>> index = Index.from_vectors([[1, 0], [1, 1], [0, 1]], labels=[0, 0, 1], classes=("ant", "owl"))
    >>> distances, ids = index.search([[2.0, 0.0]], k=2)
    >>> ids.tolist(), [f"{distance:.3f}" for distance in distances[0]]
    ([[0, 1]], ['0.000', '0.293'])
    >>> index.search([[2.0, 0.0]], k=2, label="owl")[1].tolist()
    [[2, -1]]
    """

    metric = "cosine"

    def __init__(
        self,
        vectors: Vectors,
        ids: Ints,
        labels: Ints | None,
        classes: tuple[str, ...],
        names: Sequence[str],
        *,
        kind: str,
        approximate: ApproximateIndex | None = None,
        parts: tuple[Part, ...] = (),
        model: str = "",
    ) -> None:
        # The constructor does not check its arguments; `from_vectors`, `build` and `load` check theirs.
        self.vectors, self.ids, self.labels, self.classes, self.names = vectors, ids, labels, classes, names
        self.kind, self.approximate = kind, approximate
        self.parts, self.model = parts, model
        self._by_id: Ints | None = None
        # The ids followed by -1, so that row -1 has the id -1.
        self._padded_ids: Ints | None = None

    @classmethod
    def from_vectors(
        cls,
        vectors: Embeddings,
        *,
        ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        classes: Sequence[str] = (),
        names: Sequence[str] | None = None,
        kind: str = "auto",
    ) -> Index:
        """Create an index of vectors.

        Args:
            vectors: Vectors [N, d]; they need not be normalized, and N can be 0.
            ids: Distinct integers [N], by default 0..N-1.
            labels: Class numbers [N].
            classes: Class names, by default the class numbers.
            names: Names of the samples [N].
            kind: "exact", "hnsw", "ivf-pq", "int8", "binary", or "auto": exact up to 200,000 vectors, hnsw up to
                2,000,000, then ivf-pq. For an approximate kind, the search effort is increased until recall@10 on a
                sample is at least 95%, or until the effort reaches its maximum; `measure` returns the recall.
        """
        x = as_unit_vectors("vectors", vectors)
        check_choice("kind", kind, ("auto", *KINDS))
        new_ids = assign_ids(ids, len(x), np.zeros(0, np.int64))
        numbers = as_class_numbers(labels, len(x))
        if numbers is not None and not len(classes):
            classes = number_classes(numbers)
        check_classes(numbers, tuple(classes))
        kind = choose_kind(len(x)) if kind == "auto" else kind
        index = cls(x, new_ids, numbers, tuple(classes), name_samples(names, new_ids), kind=kind)
        index._rebuild()
        return index

    @classmethod
    def build(cls, run: Model | Path | str, data: Source, *, kind: str = "auto", progress: bool = True) -> Index:
        """Embed all samples of `data` with a model (see `Encoder`) and index them. The id of a sample is its row.

        An unreadable image raises an error, or is left out if the model has `data.on_error=skip`.
        """
        from nearfar.search.encoder import Encoder
        from nearfar.search.run_index import build_index

        return build_index(Encoder(run), data, kind=kind, progress=progress)

    @classmethod
    def load(cls, folder: str | Path, *, mmap: bool = True) -> Index:
        """Load an index that `save` wrote. The vectors are memory-mapped, or read into memory with `mmap=False`."""
        from nearfar.search.storage import load

        return load(Path(folder), mmap=mmap)

    def save(self, folder: str | Path) -> None:
        """Write the index to a folder. If this is interrupted, the folder still holds the previous index."""
        from nearfar.search.storage import save

        save(self, Path(folder))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Index({len(self):,} vectors of {self.dim}, {self.kind})"

    @property
    def dim(self) -> int:
        """The number of dimensions of the vectors."""
        return int(self.vectors.shape[1])

    def search(self, queries: Embeddings, k: int = 10, *, label: str | Sequence[str] | None = None) -> Neighbors:
        """Return the k nearest samples of each query.

        Samples at the same distance are ordered by row. The distances of a query do not depend on the other queries in
        the batch (with HNSW, up to rounding).

        Args:
            queries: Vectors [Q, dim]; they need not be normalized.
            k: Number of neighbors.
            label: Search only samples of this class or these classes. Such a search is always exact.

        Returns:
            Distances 1 - cosine [Q, k], ascending, and ids [Q, k]; inf and -1 where there are fewer than k samples.
        """
        check_count("k", k)
        if label is None and len(self) and self.approximate is not None and self.approximate.has_exact_cosines:
            x = as_unit_vectors("queries", queries, dim=self.dim, check=False)
            return self._with_ids(self._search_approximate(x, k, unchecked=queries))
        x = as_unit_vectors("queries", queries, dim=self.dim)
        if label is not None:
            return self._with_ids(search_exact(x, self.vectors, k, rows=self.rows_of_classes(label)))
        return self._with_ids(self._search_rows(x, k))

    def add(
        self,
        vectors: Embeddings,
        *,
        ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
    ) -> Ints:
        """Append vectors and return their ids. Each call copies all vectors, so add many vectors at a time.

        Args:
            vectors: Vectors of shape [N, dim].
            ids: Ids of the new vectors [N]. Default: consecutive ids after the largest existing id.
            labels: Class numbers [N], required if the index has labels.
            classes: Class names that `labels` refer to, by default those of the index. The index adds new names.
            names: Names of the samples [N].
        """
        x = as_unit_vectors("vectors", vectors, dim=self.dim)
        new_ids = assign_ids(ids, len(x), self.ids)
        numbers = as_class_numbers(labels, len(x))
        if (numbers is None) != (self.labels is None):
            rule = "are required: the index has labels" if numbers is None else "must be None: the index has none"
            raise ValueError(f"labels {rule}")
        merged = self.classes
        if numbers is not None:
            check_classes(numbers, self.classes if classes is None else tuple(classes))
            if classes is not None:
                merged = tuple(dict.fromkeys([*self.classes, *classes]))
                position = {name: i for i, name in enumerate(merged)}
                numbers = np.array([position[name] for name in classes], np.int64)[numbers]
        merged_names = [*self.names, *name_samples(names, new_ids)]
        if self.approximate is not None:
            self.approximate.add(x, first_row=len(self))
        self.vectors, self.ids = np.concatenate([self.vectors, x]), np.concatenate([self.ids, new_ids])
        self.labels = None if self.labels is None or numbers is None else np.concatenate([self.labels, numbers])
        self.classes, self.names = merged, merged_names
        self._forget_lookups()
        return new_ids

    def remove(self, ids: ArrayLike) -> None:
        """Remove samples; the others keep their ids and their order."""
        keep = np.ones(len(self), dtype=np.bool_)
        keep[self.rows_of(ids)] = False
        if self.approximate is not None:
            self.approximate.remove(keep)
        self.vectors, self.ids = self.vectors[keep], self.ids[keep]
        self.labels = None if self.labels is None else self.labels[keep]
        self.names = [name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept]
        self._forget_lookups()
        if self.approximate is not None and self.approximate.removed_share > MAX_REMOVED_SHARE:
            self._rebuild()

    def vector_of(self, id: int) -> Vectors:
        """Return the unit vector [dim] of a sample."""
        vector: Vectors = np.array(self.vectors[self.rows_of([id])[0]])
        return vector

    def rows_of(self, ids: ArrayLike) -> Ints:
        """Return the rows of samples in `vectors`, `labels` and `names`. An unknown id raises a ValueError."""
        numbers = np.asarray(ids)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise ValueError(f"ids must be integers of shape [N], got {numbers.dtype} of shape {list(numbers.shape)}")
        if self._by_id is None:
            self._by_id = np.argsort(self.ids, kind="stable")
        positions = np.searchsorted(self.ids, numbers, sorter=self._by_id)
        rows: Ints = self._by_id[np.minimum(positions, len(self) - 1)] if len(self) else np.full(len(numbers), -1)
        unknown = numbers[(self.ids[rows] != numbers) if len(self) else np.ones(len(numbers), np.bool_)]
        if len(unknown):
            span = f"its {len(self):,} ids are in {self.ids.min()}..{self.ids.max()}" if len(self) else "it is empty"
            raise ValueError(f"id {unknown[0]} is not in the index: {span}")
        return rows

    def rows_of_classes(self, label: str | Sequence[str]) -> Ints:
        """Return the rows of the samples of one or several classes."""
        names = [label] if isinstance(label, str) else list(label)
        if self.labels is None:
            raise ValueError(f"label must be None, because the index has no labels, got {label!r}")
        numbers = {name: i for i, name in enumerate(self.classes)}
        for name in names:
            if name not in numbers:
                raise ValueError(f"label {name!r} is not a class of the index{suggest(str(name), numbers)}")
        return np.flatnonzero(np.isin(self.labels, [numbers[name] for name in names]))

    def label_of(self, row: int) -> str | None:
        """Return the class name of the sample in a row, or None if the index has no labels."""
        return None if self.labels is None else self.classes[int(self.labels[row])]

    def measure(self, sample: int = 1000, k: int = 10) -> float:
        """Return recall@k against exact search, with `sample` vectors of the index as queries; see `measure_recall`."""
        return measure_recall(self.vectors, self._search_rows, sample=sample, k=k)

    def _search_rows(self, queries: Vectors, k: int) -> Neighbors:
        if self.approximate is None or not len(self):
            return search_exact(queries, self.vectors, k)
        return self._search_approximate(queries, k)

    def _search_approximate(self, queries: Vectors, k: int, *, unchecked: Embeddings | None = None) -> Neighbors:
        # `unchecked` holds the original queries if they have not been checked for NaN and infinity. `accept_order`
        # returns None for queries with such values, so the check is needed only after it has returned None.
        assert self.approximate is not None
        similarity, rows = self.approximate.candidates(queries, k)
        result = accept_order(similarity, rows, self.dim) if self.approximate.has_exact_cosines else None
        if result is not None:
            return result
        if unchecked is not None:
            check_finite("queries", as_float32("queries", unchecked))
        return rank_candidates(queries, self.vectors, rows, k)

    def _with_ids(self, neighbors: Neighbors) -> Neighbors:
        distances, rows = neighbors
        if self._padded_ids is None:
            self._padded_ids = np.append(self.ids, -1)
        return distances, self._padded_ids[rows]

    def _rebuild(self) -> None:
        """Build and tune the faiss index. If there are fewer than 256 vectors, keep an existing faiss index."""
        if self.kind not in APPROXIMATE or (self.approximate is not None and len(self) < MIN_VECTORS):
            return
        self.approximate = ApproximateIndex.build(self.kind, np.ascontiguousarray(self.vectors))
        self.approximate.tune(lambda: self.measure(sample=TUNING_QUERIES))

    def _forget_lookups(self) -> None:
        self._by_id = self._padded_ids = None
