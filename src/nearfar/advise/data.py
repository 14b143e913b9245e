"""What is raced on: the training split of the data alone, of a size for short races; pictures as vectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearfar.config.schema import Data
from nearfar.data import Manifest, open_data, save_manifest
from nearfar.data.manifest import Ints
from nearfar.errors import NearfarError
from nearfar.training.prepare import open_manifest
from nearfar.training.pretrained_embeddings import embed_pretrained

LARGEST = 10_000  # samples; a race does not see more of them
FEWEST = 4  # classes: two to learn from, two to judge on
HELD_OUT = 0.2  # of the classes, and at least two
SIDE = 112  # of pictures for the network
TIMED = 32  # pictures that tell how long all take


@dataclass(frozen=True)
class Course:
    """The samples, all of the training split; `held_out`: the share of the classes that a race is judged on.

    source: as the user named it. about: in a line, what it is. seconds: that making it took.
    """

    source: str
    manifest: Manifest
    held_out: float
    about: str
    seconds: float = 0.0

    @property
    def width(self) -> int | None:
        """Of vectors."""
        features = self.manifest.features
        return None if features is None else int(features.shape[1])


def open_course(
    source: str, out: Path, *, seconds: float, whole: bool = False, say: Callable[[str], object] = print
) -> Course:
    """The data of the races. The test split is left out here, so nothing later can look at it.

    Pictures become vectors of EfficientNet-Lite0, once, as many as a quarter of `seconds` allows; they are kept in
    `out`. whole: pictures stay pictures, and races train the whole network.
    """
    started = time.monotonic()
    everything = open_manifest(Data(source=source))
    train = everything.subset("train").compact()
    sizes = np.bincount(train.labels)
    usable = int((sizes > 1).sum())
    if usable < FEWEST:
        raise NearfarError(
            f"{source}: advise judges on classes that training did not see, so the training split needs at least "
            f"{FEWEST} classes of two samples or more, got {usable}"
        )
    train = train.subset(sizes[train.labels] > 1).compact()
    raced = train.subset(_few_of_each(train.labels, LARGEST))
    if raced.kind == "files" and not whole:
        raced = _vectors(raced, out / "vectors.npz", seconds / 4, say)
    raced = raced.compact()
    classes = len(raced.classes)
    what = f"{raced.kind}" + (" of a frozen EfficientNet-Lite0" if train.kind == "files" and not whole else "")
    about = f"{len(raced):,} {what} of {classes:,} classes, of {len(train):,} of {len(train.classes):,} for training"
    return Course(source, raced, max(HELD_OUT, 2 / classes), about, time.monotonic() - started)


def _few_of_each(labels: Ints, most: int) -> Ints:
    """At most this many rows, the same number of every class, at least 8 of it if there are; else fewer classes.

    >>> _few_of_each(np.repeat(np.arange(4), 20), 40).shape
    (40,)
    """
    if len(labels) <= most:
        return np.arange(len(labels))
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    classes, starts = np.unique(labels[order], return_index=True)
    place = np.arange(len(labels)) - starts[np.searchsorted(classes, labels[order])]
    each = max(8, most // len(classes))
    kept = rng.permutation(classes)[: max(FEWEST, most // each)]
    return np.sort(order[(place < each) & np.isin(labels[order], kept)])


def _vectors(pictures: Manifest, path: Path, seconds: float, say: Callable[[str], object]) -> Manifest:
    """The pictures through the frozen network, or those that are there already."""
    if path.is_file():
        found = open_data(path)
        if found.source != pictures.fingerprint:
            raise NearfarError(f"{path}: is of other data: choose another --out")
        return found
    fingerprint = pictures.fingerprint

    def embedded(rows: Ints) -> tuple[Manifest, float]:
        started = time.monotonic()
        part = pictures.subset(rows)
        vectors = embed_pretrained(part, size=SIDE).numpy()
        return replace(part, features=vectors, root=None, source=fingerprint), time.monotonic() - started

    _, took = embedded(np.arange(min(TIMED, len(pictures))))
    most = max(int(seconds / took * min(TIMED, len(pictures))), 8 * FEWEST)
    rows = _few_of_each(pictures.labels, most)
    say(f"{len(rows):,} of {len(pictures):,} pictures through EfficientNet-Lite0, once")
    found, _ = embedded(rows)
    found = found.compact()
    save_manifest(found, path)
    return found
