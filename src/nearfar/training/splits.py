"""Open the data of a run and divide it into training, validation and test samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.config.schema import Config, Data
from nearfar.data import Manifest, NoiseRecord, add_label_noise, open_data
from nearfar.errors import NearfarError
from nearfar.metrics.protocols import class_disjoint_split, mlrc_folds


@dataclass(frozen=True)
class Splits:
    """The manifests of a run.

    Attributes:
        train: The training samples, with classes numbered without gaps.
        validation: The samples of the validation classes, if any are held out.
        test: The test samples, if the data has any.
        noise: Record of the injected label noise.
        wrong: Mask of the training samples with a wrong label, if there is label noise.
    """

    train: Manifest
    validation: Manifest | None
    test: Manifest | None
    noise: NoiseRecord | None
    wrong: NDArray[np.bool_] | None = None


def manifest_settings(data: Data) -> Data:
    """Return only the settings that `open_manifest` reads, so that equal results mean equal manifests."""
    return Data(
        source=data.source,
        split=data.split,
        root=data.root,
        labels=data.labels,
        allow_partial=data.allow_partial,
        per_class=data.per_class,
    )


def open_manifest(data: Data) -> Manifest:
    """Open the data of a run without reading its images."""
    data = manifest_settings(data)
    split = "class-order" if data.split == "class-order" else "auto"
    root, labels = (None if path is None else Path(path) for path in (data.root, data.labels))
    manifest = open_data(data.source, split=split, allow_partial=data.allow_partial, root=root, labels=labels)
    if data.split == "all":
        manifest = replace(manifest, split=np.full(len(manifest), "train"))
    return manifest if data.per_class is None else limit_per_class(manifest, data.per_class)


def limit_per_class(manifest: Manifest, count: int) -> Manifest:
    """Keep at most `count` random training samples of each class. The choice is the same in every run."""
    shuffled = np.random.default_rng(0).permutation(manifest.rows("train"))
    by_class = shuffled[np.argsort(manifest.labels[shuffled], kind="stable")]
    _, first, sizes = np.unique(manifest.labels[by_class], return_index=True, return_counts=True)
    position_in_class = np.arange(len(by_class)) - np.repeat(first, sizes)
    keep = manifest.split != "train"
    keep[by_class[position_in_class < count]] = True
    return manifest.subset(keep)


def assign_splits(manifest: Manifest, config: Config) -> tuple[Manifest, NoiseRecord | None]:
    """Mark the validation classes as `val`, then add label noise to the remaining training samples."""
    data = config.data
    if data.validation > 0 or data.folds is not None:
        rows = manifest.rows("train")
        split = manifest.split.astype("<U5").copy()
        split[rows[_validation_rows(manifest.labels[rows], data)]] = "val"
        manifest = replace(manifest, split=split)
    if data.noise.rate == 0:
        return manifest, None
    if data.noise.kind not in ("symmetric", "small-cluster"):
        raise NearfarError(f"data.noise.kind must be symmetric or small-cluster, got {data.noise.kind!r}")
    kind: Any = data.noise.kind
    seed = config.seed if data.noise.seed is None else data.noise.seed
    return add_label_noise(manifest, data.noise.rate, seed=seed, kind=kind)


def _validation_rows(labels: NDArray[np.int64], data: Data) -> NDArray[np.int64]:
    """Return the rows of the validation classes: one fold, or a random fraction of the classes."""
    classes = len(np.unique(labels))
    if data.folds is None:
        if classes < 2:
            raise NearfarError(
                f"data.validation={data.validation:g} needs at least two training classes, got {classes}"
            )
        return class_disjoint_split(labels, fraction=data.validation, seed=data.validation_seed)[1]
    if data.fold is None:
        raise NearfarError(
            f"data.folds={data.folds} needs data.fold: choose which fold (0-{data.folds - 1}) this run holds out"
        )
    if classes < data.folds:
        raise NearfarError(f"data.folds={data.folds} needs at least {data.folds} training classes, got {classes}")
    return mlrc_folds(labels, data.folds)[data.fold][1]


def split_manifest(manifest: Manifest, config: Config) -> Splits:
    """Divide a manifest into training, validation and test samples. Only training labels get noise."""
    manifest, record = assign_splits(manifest, config)
    parts = {name: manifest.subset(name) if len(manifest.rows(name)) else None for name in ("train", "val", "test")}
    if parts["train"] is None:
        raise NearfarError(f"{manifest.source or 'the data'} has no training samples")
    wrong = None if record is None else record.wrong[manifest.rows("train")]
    return Splits(parts["train"].compact(), parts["val"], parts["test"], record, wrong)
