"""Manifest: the common table for every kind of data, with the label, split and content of each sample."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfar.data.annotations import Annotations
from nearfar.data.digest import digest_array, encode_name
from nearfar.data.items import Items
from nearfar.data.read_only import check_words, freeze
from nearfar.data.summary import Summary, summarize
from nearfar.errors import NearfarError
from nearfar.formatting import counted

Array = NDArray[Any]
Ints = NDArray[np.int64]
Words = NDArray[np.str_]
Kind = Literal["files", "features", "pixels", "text", "tensors"]

SPLITS = ("train", "val", "test")
ROLES = ("", "train", "query", "gallery")
NAME_LENGTH = 80  # the name of a text sample is at most this many characters of its text


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names in the order that `Manifest.split_by_class_order` uses.

    If every name is an integer without leading zeros, the names are sorted by value, so class 2 comes before class 10.
    Otherwise they are sorted as strings, as torchvision's ImageFolder does.

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
    """Return the class number of each name, and the classes. By default, `sort_classes` defines their order.

    >>> labels, classes = number_labels(["owl", "cat", "owl"])
    >>> labels.tolist(), classes
    ([1, 0, 1], ('cat', 'owl'))
    """
    order = sort_classes(names) if classes is None else tuple(classes)
    number = {name: i for i, name in enumerate(order)}
    return np.fromiter((number[name] for name in names), np.int64, len(names)), order


@dataclass(frozen=True, eq=False)
class Manifest:
    """Table of N samples with their labels, their splits and the location of their content.

    Two manifests are equal if their fingerprints are equal, that is, if they have the same table and the same arrays.
    The fingerprint covers the paths of image files, but not their content. If `digest` is set, it stands for the
    content of the array.

    Attributes:
        labels: Class of each sample [N], an index into `classes`.
        classes: Names of the classes. `compact` removes classes without samples.
        split: "train", "val" or "test" for each sample.
        paths: Paths of image files relative to `root`. If the samples are in `features` or `pixels`, the paths are only
            the names of the samples.
        features: Feature vectors [N, d].
        pixels: uint8 images [N, H, W] or [N, H, W, 3], in memory or memory-mapped.
        texts: Texts.
        items: Images or tensors from a Python dataset, a Parquet file or tar shards. `paths` then holds their names.
        annotations: Optional further columns: multi-hot labels, groups, cameras, ancestors of the classes, and pairs.
        role: "query", "gallery", "train" or "" for each sample, for benchmarks with separate queries and gallery.
        root: Folder or archive (tar or zip) of the image files.
        source: Name of the data.
        notes: Messages for the user, for example about skipped or missing files.
        digest: Hash of the content of `features` or `pixels`, if it is known without reading the array.

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
    texts: tuple[str, ...] | None = None
    items: Items | None = None
    annotations: Annotations | None = None
    role: Words | None = None
    root: Path | None = None
    source: str = ""
    notes: tuple[str, ...] = ()
    digest: str = ""

    def __post_init__(self) -> None:
        """Check the table and make it immutable: labels, split and role become read-only, sequences become tuples."""
        labels = np.asarray(self.labels)
        if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
            raise ValueError(f"labels must be integers of shape [N], got {labels.dtype} of shape {list(labels.shape)}")
        rows = len(labels)
        if not rows:
            raise NearfarError(f"{self.source or 'the manifest'} has no samples")
        self._set("labels", freeze(labels.astype(np.int64)))
        self._set("classes", tuple(self.classes))
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must be distinct names: rename the duplicates")
        if int(labels.min()) < 0 or int(labels.max()) >= len(self.classes):
            raise ValueError(f"labels must be in 0..{len(self.classes) - 1}, got {labels.min()}..{labels.max()}")
        self._set("split", check_words("split", self.split, rows, SPLITS))
        if self.role is not None:
            self._set("role", check_words("role", self.role, rows, ROLES))
        if self.paths is not None:
            self._set("paths", tuple(self.paths))
        if self.texts is not None:
            self._set("texts", tuple(self.texts))
        if self.root is not None:
            self._set("root", Path(self.root))
        contents: dict[str, Sized | None] = {"paths": self.paths, "features": self.features, "pixels": self.pixels}
        contents |= {"texts": self.texts, "items": self.items}
        if all(column is None for column in contents.values()):
            raise ValueError("a manifest needs content: pass paths, features, pixels, texts or items")
        for name, column in contents.items():
            if column is not None and len(column) != rows:
                raise ValueError(f"{name} has {len(column)} rows but labels has {rows}")
        if self.features is not None and (self.features.ndim != 2 or self.features.dtype.kind not in "fiu"):
            shape = f"{self.features.dtype} of shape {list(self.features.shape)}"
            raise ValueError(f"features must be a numeric array of shape [N, d], got {shape}")
        if self.pixels is not None and not (
            self.pixels.dtype == np.uint8
            and (self.pixels.ndim == 3 or (self.pixels.ndim == 4 and self.pixels.shape[3] == 3))
        ):
            shape = f"{self.pixels.dtype} of shape {list(self.pixels.shape)}"
            raise ValueError(f"pixels must be a uint8 array of shape [N, H, W] or [N, H, W, 3], got {shape}")
        if self.pixels is not None and 0 in self.pixels.shape[1:3]:
            raise ValueError(f"pixels must be at least 1 x 1, got shape {list(self.pixels.shape)}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        classes = counted(len(self.classes), "class", "classes")
        kind = "texts" if self.kind == "text" else self.kind
        return f"Manifest({self.source or self.kind}: {len(self)} {kind}, {classes})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def kind(self) -> Kind:
        """What a sample is: "text", "pixels", "features", "tensors" (inputs of the network) or "files" (images)."""
        if self.texts is not None:
            return "text"
        if self.items is not None and not self.items.are_images:
            return "tensors"
        if self.pixels is not None:
            return "pixels"
        return "features" if self.features is not None else "files"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the kind, all columns and the arrays, without root, source, notes and the content of files."""
        digest = hashlib.sha256(f"nearfar manifest 1\n{self.kind}\n".encode())
        texts = () if self.texts is None else (self.texts,)
        role = None if self.role is None else self.role.tolist()
        for words in (self.classes, self.split.tolist(), self.paths, role, *texts):
            column = [] if words is None else words
            # the length comes first, so that different tables never give the same bytes
            digest.update(f"{len(column)}\n".encode())
            for word in column:
                digest.update(encode_name(f"{len(word)}:{word}\n"))
        digest.update(np.ascontiguousarray(self.labels, "<i8").tobytes())
        array = self.pixels if self.pixels is not None else self.features
        if array is not None:
            digest.update(self.digest.encode() if self.digest else digest_array(array).encode())
        if self.annotations is not None:
            digest.update(self.annotations.digest.encode())
        return digest.hexdigest()

    @property
    def targets(self) -> Array:
        """Labels for losses and scores: multi-hot [N, L] if samples have several labels, else `labels` [N]."""
        sets = None if self.annotations is None else self.annotations.label_sets
        return self.labels if sets is None else sets

    @property
    def label_count(self) -> int:
        """The number L of labels if samples have several labels, else the number of classes."""
        return len(self.classes) if self.targets.ndim == 1 else int(self.targets.shape[1])

    def name(self, row: int) -> str:
        """Return the name of a sample: its path, the start of its text, or its class and row number."""
        if self.texts is not None:
            return shorten(self.texts[row], NAME_LENGTH, placeholder=" ...") or self.texts[row][:NAME_LENGTH]
        return self.paths[row] if self.paths is not None else f"{self.classes[self.labels[row]]} #{row}"

    def rows(self, split: str) -> Ints:
        """Return the row numbers of a split in ascending order.

        >>> Manifest(labels=[0, 1], classes=("a", "b"), paths=("x", "y"), split=["train", "test"]).rows("test").tolist()
        [1]
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        return np.flatnonzero(self.split == split)

    def subset(self, rows: str | ArrayLike) -> Manifest:
        """Return a manifest with only the given rows. Labels and classes keep their numbers.

        Arrays are not copied if the rows are consecutive.

        Args:
            rows: Name of a split, boolean mask [N], or row numbers in any order.
        """
        if isinstance(rows, str):
            selected = self.rows(rows)
            if not len(selected):
                splits = ", ".join(sorted(set(self.split.tolist())))
                raise NearfarError(f"{self.source or 'the manifest'} has no {rows} samples; its splits are: {splits}")
        else:
            selected = np.asarray(rows)
            if selected.dtype == np.bool_:
                if selected.shape != (len(self),):
                    raise ValueError(f"a boolean mask must have shape [{len(self)}], got {list(selected.shape)}")
                selected = np.flatnonzero(selected)
            if not len(selected):
                raise NearfarError(f"{self.source or 'the manifest'}: the subset has no samples")
        selected = selected.astype(np.int64)
        is_run = bool((np.diff(selected) == 1).all())
        part: slice | Ints = slice(int(selected[0]), int(selected[-1]) + 1) if is_run else selected
        digest = self.digest
        if digest and not (is_run and len(selected) == len(self)):
            digest = hashlib.sha256(f"{digest} {hashlib.sha256(selected.tobytes()).hexdigest()}".encode()).hexdigest()

        def take(array: Array | None) -> Array | None:
            return None if array is None else array[part]

        return replace(
            self,
            labels=self.labels[selected],
            split=self.split[selected],
            role=take(self.role),
            paths=None if self.paths is None else tuple(self.paths[i] for i in selected.tolist()),
            texts=None if self.texts is None else tuple(self.texts[i] for i in selected.tolist()),
            features=take(self.features),
            pixels=take(self.pixels),
            items=None if self.items is None else self.items.take(part),
            annotations=None if self.annotations is None else self.annotations.take(part),
            digest=digest,
        )

    def compact(self) -> Manifest:
        """Remove classes without samples and renumber the other C classes 0..C-1 in order, as proxy losses require."""
        used, labels = np.unique(self.labels, return_inverse=True)
        return replace(self, labels=labels.astype(np.int64), classes=tuple(self.classes[i] for i in used.tolist()))

    def split_by_class_order(self, train_classes: int | None = None) -> Manifest:
        """Return a manifest that uses the first classes for training and the others for testing (see `sort_classes`).

        Args:
            train_classes: Number of training classes. The default is half of the classes, rounded down, and at least 1.
        """
        count = max(1, len(self.classes) // 2) if train_classes is None else train_classes
        if not 0 < count <= len(self.classes):
            raise ValueError(f"train_classes must be in 1..{len(self.classes)}, got {train_classes}")
        first = frozenset(sort_classes(self.classes)[:count])
        train = np.array([name in first for name in self.classes])
        return replace(self, split=np.where(train[self.labels], "train", "test"))

    def with_labels(self, labels: ArrayLike, note: str = "") -> Manifest:
        """Return a manifest with new labels and, if given, an additional note."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, labels=np.asarray(labels), notes=notes)

    def summary(self) -> Summary:
        """Return the numbers of samples and classes, in total and in each split."""
        return summarize(self)
