"""Manifest: one table for every kind of data, `path | feature row | drawing, label, split (, role)`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfar.errors import NearfarError

Array = NDArray[Any]
Ints = NDArray[np.int64]
Words = NDArray[np.str_]
Kind = Literal["files", "features", "pixels"]

SPLITS = ("train", "val", "test")
ROLES = ("", "train", "query", "gallery")
BLOCK_BYTES = 1 << 24


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names in the order that defines the split: numbers by value, everything else by code point.

    By value only where every name is a plain decimal number, so that class 2 comes before class 10; otherwise as
    Python's `sorted`, which is what folder-per-class loaders do.

    >>> sort_classes(["10", "2", "2"])
    ('2', '10')
    >>> sort_classes(["10", "2", "x"])
    ('10', '2', 'x')
    """
    distinct = set(names)
    if distinct and all(re.fullmatch(r"0|-?[1-9][0-9]*", name, re.ASCII) for name in distinct):
        return tuple(sorted(distinct, key=int))
    return tuple(sorted(distinct))


def number_labels(names: Sequence[str], classes: Sequence[str] | None = None) -> tuple[Ints, tuple[str, ...]]:
    """Class numbers of the names, and the classes they point into (in class order unless given).

    >>> labels, classes = number_labels(["owl", "cat", "owl"])
    >>> labels.tolist(), classes
    ([1, 0, 1], ('cat', 'owl'))
    """
    order = sort_classes(names) if classes is None else tuple(classes)
    number = {name: i for i, name in enumerate(order)}
    return np.fromiter((number[name] for name in names), np.int64, len(names)), order


@dataclass(frozen=True, eq=False)
class Manifest:
    """N samples with their labels and splits, and where their content is.

    `kind` says what a sample is: "pixels" (rows of a uint8 array in memory or mapped, [N, H, W] or [N, H, W, 3]),
    "features" (rows of [N, d]) or "files" (`paths` relative to `root`, a folder or a tar archive). `paths` beside
    an array are names to show. `labels` point into `classes`; a class may be without samples (see `compact`).
    `split` holds "train", "val" or "test" for each row; `role` holds "query" or "gallery" where a benchmark
    evaluates one against the other. `notes` are sentences for the user (what was skipped, what is missing).

    Two manifests are equal if their fingerprints are: the same table with the same arrays, wherever it lies.
    The bytes of picture files are not part of the fingerprint, their paths are.

    >>> m = Manifest(labels=[0, 0, 1, 2], classes=("a", "b", "c"), split=["train"] * 4, paths=("1", "2", "3", "4"))
    >>> m.split_by_class_order().split.tolist()
    ['train', 'train', 'test', 'test']
    >>> m.subset([2, 3]).compact().classes
    ('b', 'c')
    """

    labels: Ints
    classes: tuple[str, ...]
    split: Words
    paths: tuple[str, ...] | None = None
    features: Array | None = None
    pixels: Array | None = None
    role: Words | None = None
    root: Path | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    digest: str = ""

    def __post_init__(self) -> None:
        """Checks the table, and freezes its columns (arrays become read-only views, sequences tuples)."""
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
            raise ValueError(f"labels must be integers [N], got {labels.dtype} of shape {list(labels.shape)}")
        rows = len(labels)
        if not rows:
            raise NearfarError(f"{self.source or 'the manifest'}: no samples")
        self._set("labels", _frozen(labels.astype(np.int64)))
        self._set("classes", tuple(self.classes))
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must be distinct names")
        if int(labels.min()) < 0 or int(labels.max()) >= len(self.classes):
            raise ValueError(f"labels must be 0..{len(self.classes) - 1}, got {labels.min()}..{labels.max()}")
        self._set("split", _words("split", self.split, rows, SPLITS))
        if self.role is not None:
            self._set("role", _words("role", self.role, rows, ROLES))
        if self.paths is not None:
            self._set("paths", tuple(self.paths))
        if self.root is not None:
            self._set("root", Path(self.root))
        if self.paths is None and self.features is None and self.pixels is None:
            raise ValueError("a manifest needs paths, features or pixels")
        for name, column in (("paths", self.paths), ("features", self.features), ("pixels", self.pixels)):
            if column is not None and len(column) != rows:
                raise ValueError(f"{name} has {len(column)} rows but labels has {rows}")
        if self.features is not None and (self.features.ndim != 2 or self.features.dtype.kind not in "fiu"):
            raise ValueError(f"features must be numbers [N, d], got {self.features.dtype} {list(self.features.shape)}")
        if self.pixels is not None and not (
            self.pixels.dtype == np.uint8
            and (self.pixels.ndim == 3 or (self.pixels.ndim == 4 and self.pixels.shape[3] == 3))
        ):
            shape = f"{self.pixels.dtype} {list(self.pixels.shape)}"
            raise ValueError(f"pixels must be uint8 [N, H, W] or [N, H, W, 3], got {shape}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Manifest({self.source or self.kind}: {len(self)} {self.kind}, {len(self.classes)} classes)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def kind(self) -> Kind:
        """What a row is; arrays go before paths."""
        if self.pixels is not None:
            return "pixels"
        return "features" if self.features is not None else "files"

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) over kind, classes, labels, split, role, paths and array content; not over root and source."""
        digest = hashlib.sha256(f"nearfar manifest 1\n{self.kind}\n".encode())
        for words in (self.classes, self.split.tolist(), self.paths, None if self.role is None else self.role.tolist()):
            column = [] if words is None else words
            # length first, so that no two tables run together into the same bytes
            digest.update(f"{len(column)}\n".encode())
            for word in column:
                digest.update(_bytes(f"{len(word)}:{word}\n"))
        digest.update(np.ascontiguousarray(self.labels, "<i8").tobytes())
        array = self.pixels if self.pixels is not None else self.features
        if array is not None:
            digest.update(self.digest.encode() if self.digest else array_digest(array).encode())
        return digest.hexdigest()

    def name(self, row: int) -> str:
        """What to call a sample: its path, or its class and row number."""
        return self.paths[row] if self.paths is not None else f"{self.classes[self.labels[row]]} #{row}"

    def rows(self, split: str) -> Ints:
        """The row numbers of a split, ascending.

        >>> Manifest(labels=[0, 1], classes=("a", "b"), paths=("x", "y"), split=["train", "test"]).rows("test").tolist()
        [1]
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return np.flatnonzero(self.split == split)

    def subset(self, rows: str | ArrayLike) -> Manifest:
        """The rows of a split name, of a boolean mask or of row numbers, in their order; labels and classes unchanged.

        Arrays are sliced without a copy where the rows are one run.
        """
        if isinstance(rows, str):
            chosen = self.rows(rows)
            if not len(chosen):
                have = ", ".join(sorted(set(self.split.tolist())))
                raise NearfarError(f"{self.source or 'the manifest'}: no {rows} samples; its splits are: {have}")
        else:
            chosen = np.asarray(rows)
            if chosen.dtype == np.bool_:
                if chosen.shape != (len(self),):
                    raise ValueError(f"a mask must have shape [{len(self)}], got {list(chosen.shape)}")
                chosen = np.flatnonzero(chosen)
            if not len(chosen):
                raise NearfarError(f"{self.source or 'the manifest'}: the subset has no samples")
        chosen = chosen.astype(np.int64)
        paths = self.paths
        run = slice(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) and bool((np.diff(chosen) == 1).all()) else None
        digest = self.digest
        if digest and len(chosen) != len(self):
            digest = hashlib.sha256(f"{digest} {hashlib.sha256(chosen.tobytes()).hexdigest()}".encode()).hexdigest()

        def take(array: Array | None) -> Array | None:
            return None if array is None else array[chosen if run is None else run]

        return replace(
            self,
            labels=self.labels[chosen],
            split=self.split[chosen],
            role=take(self.role),
            paths=None if paths is None else tuple(paths[i] for i in chosen.tolist()),
            features=take(self.features),
            pixels=take(self.pixels),
            digest=digest,
        )

    def compact(self) -> Manifest:
        """Without the classes that have no samples, the others numbered 0.. in their order (what proxies need)."""
        used, labels = np.unique(self.labels, return_inverse=True)
        return replace(self, labels=labels.astype(np.int64), classes=tuple(self.classes[i] for i in used.tolist()))

    def split_by_class_order(self, train_classes: int | None = None) -> Manifest:
        """Train on the first `train_classes` classes by name (half of them, rounded down), test on the others.

        The order is that of `sort_classes`, whatever numbers the classes have. With a single class all is train.
        """
        count = max(1, len(self.classes) // 2) if train_classes is None else train_classes
        if not 0 < count <= len(self.classes):
            raise ValueError(f"train_classes must be in 1..{len(self.classes)}, got {train_classes}")
        first = frozenset(sort_classes(self.classes)[:count])
        train = np.array([name in first for name in self.classes])
        return replace(self, split=np.where(train[self.labels], "train", "test"))

    def with_labels(self, labels: ArrayLike, note: str = "") -> Manifest:
        """The same samples with other labels (noise, corrections)."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, labels=np.asarray(labels), notes=notes)

    def summary(self) -> Summary:
        """Counts by split and class."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        split = self.split
        by_split = {
            s: (int((split == s).sum()), len(np.unique(self.labels[split == s]))) for s in SPLITS if (split == s).any()
        }
        present = np.flatnonzero(counts)
        smallest = int(present[counts[present].argmin()])
        largest = int(present[counts[present].argmax()])
        train = set(self.labels[split == "train"].tolist())
        array = self.pixels if self.pixels is not None else self.features
        roles = {} if self.role is None else {r: int((self.role == r).sum()) for r in ("query", "gallery")}
        return Summary(
            source=self.source,
            kind=self.kind,
            samples=len(self),
            classes=len(present),
            empty_classes=len(self.classes) - len(present),
            splits=by_split,
            roles=roles,
            smallest=(self.classes[smallest], int(counts[smallest])),
            largest=(self.classes[largest], int(counts[largest])),
            singletons=int((counts == 1).sum()),
            shared_classes=len(train & set(self.labels[split == "test"].tolist())),
            shape=() if array is None else tuple(array.shape),
            notes=self.notes,
        )


def _bytes(text: str) -> bytes:
    """UTF-8; bytes of file names that are none as they are, halves of a UTF-16 pair as if they were characters."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Summary:
    """What `nearfar data` prints; `splits` maps a split to (samples, classes)."""

    source: str
    kind: str
    samples: int
    classes: int
    empty_classes: int
    splits: dict[str, tuple[int, int]]
    roles: dict[str, int]
    smallest: tuple[str, int]
    largest: tuple[str, int]
    singletons: int
    shared_classes: int
    shape: tuple[int, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        what = self.kind if not self.shape else f"{self.kind} of shape {' x '.join(map(str, self.shape[1:]))}"
        lines = [f"{self.source or 'manifest'}: {self.samples:,} {what}, {self.classes:,} classes"]
        lines += [f"  {s:6s} {n:9,} samples, {c:,} classes" for s, (n, c) in self.splits.items()]
        if any(self.roles.values()):
            lines.append("  " + ", ".join(f"{role} {n:,}" for role, n in self.roles.items()))
        (small, few), (large, many) = self.smallest, self.largest
        sizes = f"smallest class {small} ({few:,}), largest {large} ({many:,})"
        lines.append(f"  {sizes}" if few < many else f"  every class has {few:,}")
        if self.singletons:
            lines.append(f"  {self.singletons:,} classes have one sample: it has no positive")
        if self.shared_classes:
            lines.append(
                f"  {self.shared_classes:,} classes are in train and in test: scores are not of unseen classes"
            )
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def array_digest(array: Array) -> str:
    """sha256 of dtype, shape and content, blockwise, so that a memory map is never held whole."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    step = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        digest.update(np.ascontiguousarray(array[start : start + step]).data)
    return digest.hexdigest()


def _words(name: str, values: ArrayLike, rows: int, allowed: tuple[str, ...]) -> Words:
    words = np.asarray(values, dtype=np.str_)
    if words.shape != (rows,):
        raise ValueError(f"{name} must have shape [{rows}], got {list(words.shape)}")
    odd = sorted(set(np.unique(words).tolist()) - set(allowed))
    if odd:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {odd[0]!r}")
    frozen: Words = _frozen(words)
    return frozen


def _frozen(array: Array) -> Array:
    view: Array = array.view()
    view.flags.writeable = False
    return view
