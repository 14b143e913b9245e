"""Index: unit vectors with ids, labels and names, searched by cosine, exactly or where there are many approximately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfar.data.manifest import Manifest
from nearfar.metrics.inputs import Embeddings
from nearfar.search.approximate import APPROXIMATE, FEWEST, KINDS, Approximate, kind_for
from nearfar.search.inputs import (
    check_at_least_one,
    check_classes,
    check_lengths,
    class_numbers,
    float_rows,
    names_of,
    new_ids,
    number_names,
    unit_rows,
)
from nearfar.search.nearest import Floats, Found, Ints, in_order, nearest, present, ranked, slack
from nearfar.validation import check_choice
from nearfar.validation import nearest as near_word

if TYPE_CHECKING:
    from nearfar.training import Run

# removed rows stay in a faiss index until they are this share of it (ours)
DEAD_SHARE = 0.25
TUNED_ON = 100


@dataclass(frozen=True)
class Part:
    """Where a run of ids comes from: id `first` + i is row i of the data `source` ("": the run's own), i < `rows`."""

    source: str
    first: int
    rows: int
    fingerprint: str


class Index:
    """N samples to search in.

    `vectors` [N, dim] are unit rows in float32 (a zero row stays zero: it is at distance 1 from everything), `ids` [N]
    distinct whole numbers that samples keep whatever is added or removed, `labels` [N] (or None) point into `classes`,
    `names` [N] are paths or "row 17". `parts` says where they come from, `model` is the sha256 of the weights, "" where
    unknown. `kind` is "exact", "hnsw" or "ivf-pq".

    Several threads may search at once; nobody may while rows are added or removed.

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
        vectors: Floats,
        ids: Ints,
        labels: Ints | None,
        classes: tuple[str, ...],
        names: Sequence[str],
        *,
        kind: str,
        approximate: Approximate | None = None,
        slots: Ints | None = None,
        parts: tuple[Part, ...] = (),
        model: str = "",
    ) -> None:
        """Of parts that are known to fit; `from_vectors`, `build` and `load` make them so.

        `slots` maps the rows of the faiss index to ours, -1 where one was removed; None where they are the same.
        """
        self.vectors, self.ids, self.labels, self.classes, self.names = vectors, ids, labels, classes, names
        self.kind, self.approximate, self.slots = kind, approximate, slots
        self.parts, self.model = parts, model
        self._by_id: Ints | None = None
        self._alive: NDArray[np.uint8] | None = None
        # ids, then -1 for row -1
        self._found_ids: Ints | None = None

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
        """An index of these vectors [N, d], which need not be of unit length; N may be 0.

        ids: 0.. by default. labels: class numbers, with their `classes` (numbers as words where left out). kind:
        "auto" is exact up to 200,000 vectors, hnsw up to 2,000,000, then ivf-pq. Approximate kinds search so hard that
        they find 95% of the ten nearest of a sample of rows, where they can; `measure` says how many it is.
        """
        rows = unit_rows("vectors", vectors)
        count = len(rows)
        check_choice("kind", kind, ("auto", *KINDS))
        numbers = new_ids(ids, count, np.zeros(0, np.int64))
        known = class_numbers(labels, count)
        if known is not None and not len(classes):
            classes = number_names(known)
        check_classes(known, tuple(classes))
        index = cls(
            rows,
            numbers,
            known,
            tuple(classes),
            names_of(names, numbers),
            kind=kind_for(count) if kind == "auto" else kind,
        )
        index._rebuild()
        return index

    @classmethod
    def build(cls, run: Run | Path, data: Manifest | str, *, kind: str = "auto", progress: bool = True) -> Index:
        """An index of all samples of `data`, embedded by the run's model; ids are rows of the data.

        Pictures that cannot be read are an error, or left out where the run's `data.on_error` is skip.
        """
        from nearfar.search.encoder import Encoder

        encoder = Encoder(run)
        manifest = data if isinstance(data, Manifest) else encoder.run.manifest(data)
        vectors, rows = encoder.samples(manifest, progress=progress)
        index = cls.from_vectors(
            vectors,
            ids=rows,
            labels=manifest.labels[rows],
            classes=manifest.classes,
            names=sample_names(manifest, rows),
            kind=kind,
        )
        index.parts = (part_of(encoder.run, manifest, data if isinstance(data, str) else manifest.source, first=0),)
        index.model = encoder.model
        return index

    @classmethod
    def load(cls, folder: str | Path, *, mmap: bool = True) -> Index:
        """The index that `save` wrote; vectors are read from disk when they are needed, with `mmap=False` at once."""
        from nearfar.search.storage import load

        return load(Path(folder), mmap=mmap)

    def save(self, folder: str | Path) -> None:
        """Write it to a folder, which holds the old index or the new one at every moment."""
        from nearfar.search.storage import save

        save(self, Path(folder))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Index({len(self):,} vectors of {self.dim}, {self.kind})"

    @property
    def dim(self) -> int:
        """Of the vectors."""
        return int(self.vectors.shape[1])

    def search(self, queries: Embeddings, k: int = 10, *, label: str | Sequence[str] | None = None) -> Found:
        """Cosine distances 1 - s [Q, k], ascending, and ids [Q, k]; inf and -1 where there are fewer than k.

        Equal distances rank by row. `label`: only samples of this class or these; always exact. An exact search gives
        a query the same distances alone and in a batch, HNSW the same but for the last digits.
        """
        count = check_at_least_one(k)
        if label is None and len(self) and self.approximate is not None and self.approximate.exact_cosines:
            asked = unit_rows("queries", queries, dim=self.dim, check=False)
            return self._with_ids(self._approximate(asked, count, given=queries))
        asked = unit_rows("queries", queries, dim=self.dim)
        if label is not None:
            return self._with_ids(nearest(asked, self.vectors, count, rows=self.rows_labeled(label)))
        return self._with_ids(self._found(asked, count))

    def add(
        self,
        vectors: Embeddings,
        *,
        ids: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        classes: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
    ) -> Ints:
        """Put vectors behind the others and give their ids, by default counted on from the largest.

        Labels are needed where the index has them; `classes` are theirs where these are not the index's own: new names
        come behind the known ones. Every call copies the index once: add many vectors at a time.
        """
        rows = unit_rows("vectors", vectors, dim=self.dim)
        count = len(rows)
        numbers = new_ids(ids, count, self.ids)
        known = class_numbers(labels, count)
        if (known is None) != (self.labels is None):
            have = "no labels" if self.labels is None else "labels"
            raise ValueError(f"labels must {'not ' if self.labels is None else ''}be given: the index has {have}")
        merged = self.classes
        if known is not None:
            check_classes(known, self.classes if classes is None else tuple(classes))
            if classes is not None:
                merged = tuple(dict.fromkeys([*self.classes, *classes]))
                place = {name: i for i, name in enumerate(merged)}
                known = np.array([place[name] for name in classes], np.int64)[known]
        called = [*self.names, *names_of(names, numbers)]
        if self.approximate is not None:
            self.approximate.add(rows)
            if self.slots is not None:
                self.slots = np.concatenate([self.slots, len(self) + np.arange(count)])
        self.vectors, self.ids = np.concatenate([self.vectors, rows]), np.concatenate([self.ids, numbers])
        self.labels = None if self.labels is None or known is None else np.concatenate([self.labels, known])
        self.classes, self.names = merged, called
        self._changed()
        return numbers

    def remove(self, ids: ArrayLike) -> None:
        """Take samples out; the others keep their ids and their order."""
        gone = np.zeros(len(self), dtype=np.bool_)
        gone[self.rows_of(ids)] = True
        keep = ~gone
        if self.approximate is not None:
            slots = np.arange(len(self)) if self.slots is None else self.slots
            place = np.where(keep, np.cumsum(keep) - 1, -1)
            self.slots = np.where(slots < 0, -1, place[slots])
        self.vectors, self.ids = self.vectors[keep], self.ids[keep]
        self.labels = None if self.labels is None else self.labels[keep]
        self.names = [name for name, kept in zip(self.names, keep.tolist(), strict=True) if kept]
        self._changed()
        if self.slots is not None and np.count_nonzero(self.slots < 0) > DEAD_SHARE * len(self.slots):
            self._rebuild()

    def vector_of(self, id: int) -> Floats:
        """The unit vector [dim] of a sample."""
        vector: Floats = np.array(self.vectors[self.rows_of([id])[0]])
        return vector

    def rows_of(self, ids: ArrayLike) -> Ints:
        """Where samples are in `vectors`, `labels` and `names`; an unknown id is a ValueError."""
        asked = np.asarray(ids)
        if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
            raise ValueError(f"ids must be whole numbers [N], got {asked.dtype} of shape {list(asked.shape)}")
        if self._by_id is None:
            self._by_id = np.argsort(self.ids, kind="stable")
        places = np.searchsorted(self.ids, asked, sorter=self._by_id)
        rows: Ints = self._by_id[np.minimum(places, len(self) - 1)] if len(self) else np.full(len(asked), -1)
        unknown = asked[(self.ids[rows] != asked) if len(self) else np.ones(len(asked), np.bool_)]
        if len(unknown):
            span = f", which go from {self.ids.min()} to {self.ids.max()}" if len(self) else ": it is empty"
            raise ValueError(f"id {unknown[0]} is not in the index of {len(self):,} ids{span}")
        return rows

    def rows_labeled(self, label: str | Sequence[str]) -> Ints:
        """Where the samples of a class, or of several, are."""
        wanted = [label] if isinstance(label, str) else list(label)
        if self.labels is None:
            raise ValueError(f"label={label!r}: the index has no labels")
        known = {name: i for i, name in enumerate(self.classes)}
        for name in wanted:
            if name not in known:
                raise ValueError(f"label {name!r} is no class of the index{near_word(str(name), known)}")
        return np.flatnonzero(np.isin(self.labels, [known[name] for name in wanted]))

    def label_of(self, row: int) -> str | None:
        """The class of the sample in a row, None where there are no labels."""
        return None if self.labels is None else self.classes[int(self.labels[row])]

    def measure(self, sample: int = 1000, k: int = 10) -> float:
        """Recall@k against exact: the share of the k nearest others of some rows that `search` finds.

        Rows are drawn with a fixed seed. A neighbor counts as found if it is as near as the exact k-th, but for the
        last digits.
        """
        check_at_least_one(k)
        if len(self) < 2:
            return 1.0
        rows = np.arange(len(self))
        if len(self) > sample:
            rows = np.sort(
                np.random.default_rng(0).choice(len(self), check_at_least_one(sample, "sample"), replace=False)
            )
        asked = np.ascontiguousarray(self.vectors[rows])
        k = min(k, len(self) - 1)
        right, found = (
            _without(rows, *answer) for answer in (nearest(asked, self.vectors, k + 1), self._found(asked, k + 1))
        )
        return float((found <= right[:, -1:] + slack(self.dim)).mean())

    def _found(self, asked: Floats, k: int) -> Found:
        if self.approximate is None or not len(self):
            return nearest(asked, self.vectors, k)
        return self._approximate(asked, k)

    def _approximate(self, asked: Floats, k: int, *, given: Embeddings | None = None) -> Found:
        """given: queries whose lengths are not checked yet. One that is wrong shows as neighbors without an order."""
        assert self.approximate is not None
        if self.slots is not None and self._alive is None:
            self._alive = np.packbits(self.slots >= 0, bitorder="little")
        similarity, slots = self.approximate.candidates(asked, k, self._alive)
        rows = slots if self.slots is None else _rows(self.slots, slots)
        known = in_order(similarity, rows, self.dim) if self.approximate.exact_cosines else None
        if known is not None:
            return known
        if given is not None:
            check_lengths("queries", float_rows("queries", given))
        return ranked(asked, self.vectors, rows, k)

    def _with_ids(self, found: Found) -> Found:
        distances, rows = found
        if self._found_ids is None:
            self._found_ids = np.append(self.ids, -1)
        return distances, self._found_ids[rows]

    def _rebuild(self) -> None:
        """Make the faiss index of the rows that there are, and find how hard it must search."""
        if self.kind not in APPROXIMATE:
            return
        if self.approximate is not None and len(self) < FEWEST:
            return
        self.approximate, self.slots = Approximate.of(self.kind, np.ascontiguousarray(self.vectors)), None
        self._changed()
        self.approximate.tune(lambda: self.measure(sample=TUNED_ON))

    def _changed(self) -> None:
        self._by_id = self._alive = self._found_ids = None


def sample_names(manifest: Manifest, rows: Ints, *, first: int = 0) -> list[str]:
    """Paths, or where there are none "row 17"."""
    paths = manifest.paths
    return [f"row {first + row}" if paths is None else paths[row] for row in rows.tolist()]


def part_of(run: Run, manifest: Manifest, source: str, *, first: int) -> Part:
    """The rows of a manifest as ids from `first`; a path is kept whole, so that it is found from anywhere."""
    path = Path(source).expanduser()
    where = str(path.resolve()) if source and path.exists() else source
    own = manifest.fingerprint == run.config.data.fingerprint
    return Part("" if own else where, first, len(manifest), manifest.fingerprint)


def _rows(values: Ints, places: Ints) -> Ints:
    """values[places], -1 where a place is -1."""
    return values[places] if present(places) else np.where(places < 0, -1, values[places])


def _without(own: Ints, distances: Floats, rows: Ints) -> Floats:
    """Distances [Q, k] of [Q, k + 1] without the query's own row, or without the last where that was not found."""
    mine = rows == own[:, None]
    mine[~mine.any(1), -1] = True
    kept: Floats = distances[~mine].reshape(len(own), -1)
    return kept
