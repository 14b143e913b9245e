"""Samples that `nearfar index` added to the index of a run. They are served together with the data of the run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.data.manifest import Ints, Manifest
from nearfar.errors import NearfarError
from nearfar.formatting import clean_text, counted
from nearfar.model import Model
from nearfar.report.thumbnails import Thumbnails
from nearfar.search import Encoder, Index
from nearfar.search.part import Part
from nearfar.search.run_index import load_index
from nearfar.search.storage import INDEX_FILE

ADDED = "added"  # the value of `split` for these samples in the API


@dataclass(frozen=True)
class AddedSamples:
    """M samples that are in the index of a run but not in its data.

    Attributes:
        vectors: Unit vectors [M, d].
        labels: Indices [M] into `classes`.
        classes: The classes of the run's data, followed by those that only added samples have.
        names: Names [M].
        images: For each sample [M], the thumbnails of its dataset and its row in that dataset, or None if the dataset
            cannot be opened.
        new_classes: The number of classes that only added samples have.
        problem: Why samples or images are missing, or "".
    """

    vectors: Tensor
    labels: Ints
    classes: tuple[str, ...]
    names: tuple[str, ...]
    images: tuple[tuple[Thumbnails, int] | None, ...]
    new_classes: int = 0
    problem: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    def without_samples(self, reason: str) -> AddedSamples:
        """Return a copy without samples. If there were any, its `problem` says how many are left out and why."""
        verb = "is" if len(self) == 1 else "are"
        omission = f"{counted(len(self), 'sample')} of the index {verb} not shown, because the server {reason}"
        problem = omission if len(self) else self.problem
        classes = self.classes[: len(self.classes) - self.new_classes]
        return AddedSamples(self.vectors[:0], self.labels[:0], classes, (), (), problem=problem)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of vectors, labels, classes and names, or "" if there are no samples."""
        if not len(self):
            return ""
        digest = hashlib.sha256(self.vectors.numpy().tobytes() + self.labels.tobytes())
        digest.update("\0".join((*self.classes, *self.names)).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_added_samples(encoder: Encoder, manifest: Manifest) -> AddedSamples:
    """Load the samples of RUN/index that are not in `manifest`, the data of the run.

    A sample without a label has the class "(no label)". An index that cannot be read, or that was built with other
    weights, is described in `problem`.
    """
    none = AddedSamples(torch.zeros(0, encoder.dim), np.zeros(0, np.int64), manifest.classes, (), ())
    folder = encoder.run.index_folder
    if not (folder / INDEX_FILE).is_file():
        return none
    try:
        index = load_index(encoder, folder)
    except NearfarError as error:
        return AddedSamples(none.vectors, none.labels, none.classes, (), (), problem=str(error))
    problems: list[str] = []
    rows: list[int] = []
    images: list[tuple[Thumbnails, int] | None] = []
    for part in index.parts:
        if part.source and part.fingerprint != encoder.run.config.data.fingerprint:
            new = _rows_of(index, part, manifest)
            thumbnails = _open_images(encoder.run, part, problems.append)
            rows += new
            images += [None if thumbnails is None else (thumbnails, int(index.ids[row]) - part.first) for row in new]
    labels = ["(no label)" if index.labels is None else str(index.label_of(row)) for row in rows]
    classes = (*manifest.classes, *(name for name in dict.fromkeys(labels) if name not in set(manifest.classes)))
    numbers = {name: i for i, name in enumerate(classes)}
    return AddedSamples(
        torch.from_numpy(np.array(index.vectors[rows], dtype=np.float32).reshape(len(rows), encoder.dim)),
        np.array([numbers[label] for label in labels], dtype=np.int64),
        classes,
        tuple(index.names[row] for row in rows),
        tuple(images),
        new_classes=len(classes) - len(manifest.classes),
        problem="; ".join(problems),
    )


def _rows_of(index: Index, part: Part, manifest: Manifest) -> list[int]:
    """Return the rows in the index of the samples that come from one dataset.

    Samples that are also in the data of the run are left out.

    Args:
        index: The index of the run.
        part: Describes the dataset and its ids in the index.
        manifest: The data of the run.
    """
    known: set[str] = set()
    if manifest.root is not None and part.root == str(manifest.root.resolve()):
        known.update(manifest.paths or ())
    inside = np.flatnonzero((index.ids >= part.first) & (index.ids < part.first + part.rows))
    return [row for row in inside.tolist() if index.names[row] not in known]


def _open_images(run: Model, part: Part, say: Callable[[str], object]) -> Thumbnails | None:
    try:
        manifest = run.manifest(part.source)
        if manifest.fingerprint != part.fingerprint:
            raise NearfarError("the data has changed since it was indexed")
        return Thumbnails(manifest)
    except NearfarError as error:
        say(f"cannot show the images of {clean_text(part.source)}: {error}")
        return None
