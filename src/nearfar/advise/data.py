"""The data of the trials: a subset of the training split. By default, images and texts are embedded once beforehand."""

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
from nearfar.training.prepare import drop_or_refuse_broken
from nearfar.training.pretrained_embeddings import embed_pretrained
from nearfar.training.splits import open_manifest

MAX_SAMPLES = 10_000
MIN_CLASSES = 4  # two to train on, two to score on
HELD_OUT = 0.2  # fraction of the classes that are held out (at least two classes)
IMAGE_SIZE = 112
NETWORKS = {"files": "EfficientNet-Lite0", "text": "all-MiniLM-L6-v2"}  # frozen networks that embed the samples
EMBEDDING_SHARE = 0.25  # largest fraction of the time budget that embedding images or texts may take
TIMED_IMAGES = 32  # number of images that are embedded first, to estimate the time for the rest


@dataclass(frozen=True)
class TrialData:
    """Samples of the training split that the trials use.

    Attributes:
        source: Name or path of the dataset, as the user passed it.
        manifest: The samples.
        held_out: Fraction of the classes that a trial is scored on.
        description: One line about the data.
        seconds: Time that it took to prepare the data, in seconds.
    """

    source: str
    manifest: Manifest
    held_out: float
    description: str
    seconds: float = 0.0

    @property
    def width(self) -> int | None:
        """Dimension of the feature vectors, or None if the samples are not feature vectors."""
        features = self.manifest.features
        return None if features is None else int(features.shape[1])


def open_trial_data(
    source: str,
    out: Path,
    *,
    seconds: float,
    whole: bool = False,
    skip_broken: bool = False,
    before_embedding: Callable[[TrialData], object] = lambda _: None,
    say: Callable[[str], object] = print,
) -> TrialData:
    """Open the training split for trials. The test split is dropped here, so that no trial can read it.

    Args:
        source: The dataset, as for `nearfar train`.
        out: Directory where the feature vectors of images and texts are cached.
        seconds: Time budget in seconds; embedding takes at most about a quarter of it.
        whole: If True, keep images and texts, so that trials train the whole network; otherwise, embed them once with
            a frozen network.
        skip_broken: If True, leave out images that cannot be read; otherwise, raise an error.
        before_embedding: Called with the data before images or texts are embedded. It is not called if their feature
            vectors are already cached.
        say: Called with progress messages.
    """
    started = time.monotonic()
    train = open_manifest(Data(source=source)).subset("train").compact()
    sizes = np.bincount(train.labels)
    usable = int((sizes > 1).sum())
    if usable < MIN_CLASSES:
        raise NearfarError(
            f"{source}: advise scores recipes on held-out classes, so the training split needs at least {MIN_CLASSES} "
            f"classes with two or more samples, got {usable}"
        )
    train = train.subset(sizes[train.labels] > 1).compact()
    samples = train.subset(_balanced_subset(train.labels, MAX_SAMPLES))
    samples = drop_or_refuse_broken(samples, skip=skip_broken, workers=2, say=say)
    is_embedded = train.kind in NETWORKS and not whole
    if is_embedded:
        if not (out / "vectors.npz").is_file():
            held_out = max(HELD_OUT, 2 / len(np.unique(samples.labels)))
            before_embedding(TrialData(source, samples, held_out, ""))
        samples = _embed_samples(samples, out / "vectors.npz", EMBEDDING_SHARE * seconds, say)
    samples = samples.compact()
    classes = len(samples.classes)
    kind = f"{samples.kind} of a frozen {NETWORKS[train.kind]}" if is_embedded else samples.kind
    description = (
        f"{len(samples):,} samples ({kind}) of {classes:,} classes "
        f"(training split: {len(train):,} samples of {len(train.classes):,} classes)"
    )
    return TrialData(source, samples, max(HELD_OUT, 2 / classes), description, time.monotonic() - started)


def _balanced_subset(labels: Ints, limit: int) -> Ints:
    """Return the indices of all samples if there are at most `limit`, otherwise of a random subset.

    The subset has at most `limit` / (number of classes) samples of each class. If this is less than 8, random classes
    are dropped, so that each remaining class can have 8 samples.

    >>> _balanced_subset(np.repeat(np.arange(4), 20), 40).shape
    (40,)
    """
    if len(labels) <= limit:
        return np.arange(len(labels))
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    classes, starts = np.unique(labels[order], return_index=True)
    position = np.arange(len(labels)) - starts[np.searchsorted(classes, labels[order])]
    per_class = max(8, limit // len(classes))
    chosen = rng.permutation(classes)[: max(MIN_CLASSES, limit // per_class)]
    return np.sort(order[(position < per_class) & np.isin(labels[order], chosen)])


def _embed_samples(images: Manifest, path: Path, seconds: float, say: Callable[[str], object]) -> Manifest:
    """Return a manifest of feature vectors: those cached in `path`, if any, or new ones from the frozen network.

    New vectors are computed for as many images or texts as the time allows, and cached.
    """
    if path.is_file():
        cached = open_data(path)
        if cached.source != images.fingerprint:
            raise NearfarError(f"{path} contains vectors computed from different data: choose another --out")
        return cached
    fingerprint = images.fingerprint

    def embed(indices: Ints) -> tuple[Manifest, float]:
        started = time.monotonic()
        part = images.subset(indices)
        vectors = embed_pretrained(part, size=IMAGE_SIZE).numpy()
        embedded = replace(part, features=vectors, texts=None, root=None, source=fingerprint, digest="")
        return embedded, time.monotonic() - started

    timed = min(TIMED_IMAGES, len(images))
    _, elapsed = embed(np.arange(timed))
    limit = max(int(seconds / elapsed * timed), 8 * MIN_CLASSES)
    indices = _balanced_subset(images.labels, limit)
    what = "texts" if images.kind == "text" else "images"
    say(f"embedding {len(indices):,} of {len(images):,} {what} with {NETWORKS[images.kind]}")
    embedded = embed(indices)[0].compact()
    save_manifest(embedded, path)
    return embedded
