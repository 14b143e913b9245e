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
from nearfar.formatting import counted
from nearfar.metrics.protocols import class_disjoint_split, mlrc_folds
from nearfar.training.reduce import keep_classes, limit_per_class, long_tail_counts, merge_classes


@dataclass(frozen=True)
class Splits:
    """The manifests of a run.

    Attributes:
        train: The training samples, with classes numbered without gaps.
        validation: The samples of the validation classes, if any are held out.
        test: The test samples, if the data has any.
        noise: Record of the injected label noise, if any.
        wrong: Mask of the training samples whose label was made wrong, if label noise was injected.
    """

    train: Manifest
    validation: Manifest | None
    test: Manifest | None
    noise: NoiseRecord | None
    wrong: NDArray[np.bool_] | None = None


def manifest_settings(data: Data) -> Data:
    """Return the settings that `open_manifest` uses, with all other settings at their defaults.

    If the results for two configurations are equal, `open_manifest` opens the same manifest for both.
    """
    return Data(
        source=data.source,
        split=data.split,
        root=data.root,
        labels=data.labels,
        text=data.text,
        label=data.label,
        image=data.image,
        separator=data.separator,
        group=data.group,
        camera=data.camera,
        levels=data.levels,
        taxonomy=data.taxonomy,
        allow_partial=data.allow_partial,
        train_classes=data.train_classes,
        per_class=data.per_class,
        long_tail=data.long_tail,
        swap_halves=data.swap_halves,
        ignore_roles=data.ignore_roles,
    )


def open_manifest(data: Data) -> Manifest:
    """Open the data of a run without reading its images."""
    data = manifest_settings(data)
    split = "class-order" if data.split == "class-order" else "auto"
    root, labels = (None if path is None else Path(path) for path in (data.root, data.labels))
    manifest = open_data(
        data.source,
        split=split,
        allow_partial=data.allow_partial,
        root=root,
        labels=labels,
        text=data.text,
        label=data.label,
        image=data.image,
        separator=data.separator,
        group=data.group,
        camera=data.camera,
        levels=data.levels,
        taxonomy=None if data.taxonomy is None else Path(data.taxonomy),
    )
    if data.split == "all":
        manifest = replace(manifest, split=np.full(len(manifest), "train"))
    if data.swap_halves:
        swapped = {"train": "test", "test": "train"}
        manifest = replace(manifest, split=np.array([swapped.get(name, name) for name in manifest.split.tolist()]))
    if data.ignore_roles:
        manifest = replace(manifest, role=None)
    if data.train_classes is not None:
        manifest = keep_classes(manifest, data.train_classes)
    if data.per_class is not None:
        manifest = limit_per_class(manifest, data.per_class)
    return limit_per_class(manifest, long_tail_counts(manifest, data.long_tail)) if data.long_tail else manifest


def assign_splits(manifest: Manifest, config: Config) -> tuple[Manifest, NoiseRecord | None]:
    """Mark the validation classes as `val`, then merge training classes and add label noise to training samples.

    Returns:
        The changed manifest, and the record of the noise or None if there is no noise.
    """
    data = config.data
    if data.validation > 0 or data.folds is not None:
        rows = manifest.rows("train")
        split = manifest.split.astype("<U5").copy()
        split[rows[_validation_rows(manifest.labels[rows], data)]] = "val"
        manifest = replace(manifest, split=split)
    if data.merge_classes is not None:
        manifest = merge_classes(manifest, data.merge_classes)
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
    train = parts["train"].compact()
    if len(train.classes) < 2:
        raise NearfarError(
            f"{manifest.source or 'the data'}: the training split has only one class, {train.classes[0]!r}, but "
            f"training needs at least two classes to separate: {_advise_more_classes(manifest, config)}"
        )
    wrong = None if record is None else record.wrong[manifest.rows("train")]
    return Splits(train, parts["val"], parts["test"], record, wrong)


def describe_shared_classes(splits: Splits) -> list[str]:
    """Return a warning for each of the validation and test splits that shares classes with the training split."""
    trained, lines = set(splits.train.classes), []
    for name, part in (("validation", splits.validation), ("test", splits.test)):
        if part is None:
            continue
        present = {part.classes[label] for label in np.unique(part.labels).tolist()}
        shared = sorted(present & trained)
        if shared:
            lines.append(
                f"{len(shared):,} of {counted(len(present), f'{name} class', f'{name} classes')} are also in the "
                f"training split (for example {shared[0]!r}), so the {name} scores do not measure unseen classes: set "
                "data.split=class-order to split by class"
            )
    return lines


def describe_joined_labels(manifest: Manifest) -> list[str]:
    """Return a warning if most class names contain "|", which may separate several labels of a sample."""
    joined = [name for name in manifest.classes if "|" in name]
    if manifest.targets.ndim == 2 or 2 * len(joined) <= len(manifest.classes):
        return []
    return [
        f"{len(joined):,} of {len(manifest.classes):,} class names contain '|' (for example {joined[0]!r}) and are "
        "read as one label each: if they are several labels, set \"data.separator='|'\""
    ]


def _advise_more_classes(manifest: Manifest, config: Config) -> str:
    classes = len(np.unique(manifest.labels))
    if classes < 2:
        return "add samples of other classes"
    if config.data.split == "all":
        return "hold out fewer classes for validation"
    return f"set data.split=all to train on all {classes} classes without a test split, or add classes"
