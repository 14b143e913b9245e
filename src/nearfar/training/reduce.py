"""Make the training split of a manifest smaller or coarser: fewer classes, fewer samples per class, merged classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nearfar.data import Manifest
from nearfar.errors import NearfarError


def keep_classes(manifest: Manifest, count: int) -> Manifest:
    """Return the manifest with only `count` training classes, chosen at random.

    The choice is the same in every run, and a larger count adds classes to those of a smaller one. Samples of other
    splits are all kept.
    """
    order = _shuffled_classes(manifest)
    if count > len(order):
        raise NearfarError(f"data.train_classes={count}: there are only {len(order)} training classes")
    return manifest.subset((manifest.split != "train") | np.isin(manifest.labels, order[:count]))


def merge_classes(manifest: Manifest, size: int) -> Manifest:
    """Return the manifest with the training classes merged into groups of `size` classes, chosen at random.

    The choice is the same in every run. If the number of training classes is not a multiple of `size`, the last group
    is smaller. The name of a group consists of the names of its classes, joined by " + ". The labels of samples of
    other splits do not change.
    """
    annotations = manifest.annotations
    if annotations is not None and (annotations.label_sets is not None or annotations.levels is not None):
        raise NearfarError("data.merge_classes cannot be used with several labels per sample or with levels of classes")
    order = _shuffled_classes(manifest)
    number, names = np.arange(len(manifest.classes)), list(manifest.classes)
    for start in range(0, len(order), size):
        group = np.sort(order[start : start + size])
        if len(group) > 1:
            number[group] = len(names)
            names.append(" + ".join(manifest.classes[i] for i in group.tolist()))
    labels = np.where(manifest.split == "train", number[manifest.labels], manifest.labels)
    return replace(manifest, labels=labels, classes=tuple(names))


def long_tail_counts(manifest: Manifest, ends: Sequence[int]) -> NDArray[np.int64]:
    """Return the number of training samples to keep in each class.

    The numbers are a geometric sequence that is assigned to the classes in random order.

    Args:
        manifest: The data. Classes without training samples get 0.
        ends: The smallest and the largest number of samples of a class.
    """
    if len(ends) != 2 or not 2 <= ends[0] <= ends[1]:
        raise NearfarError(
            f"data.long_tail must be two class sizes, the smallest (at least 2) and the largest, got {list(ends)}"
        )
    order = _shuffled_classes(manifest)
    counts = np.zeros(len(manifest.classes), dtype=np.int64)
    counts[order] = np.geomspace(ends[1], ends[0], len(order)).round()
    return counts


def limit_per_class(manifest: Manifest, count: int | NDArray[np.int64]) -> Manifest:
    """Return the manifest with at most `count` training samples of each class, chosen at random.

    The choice is the same in every run. Samples of other splits are all kept.

    Args:
        manifest: The data.
        count: One number for all classes, or one number per class.
    """
    most = np.broadcast_to(np.asarray(count), len(manifest.classes))
    shuffled = np.random.default_rng(0).permutation(manifest.rows("train"))
    by_class = shuffled[np.argsort(manifest.labels[shuffled], kind="stable")]
    _, first, sizes = np.unique(manifest.labels[by_class], return_index=True, return_counts=True)
    position_in_class = np.arange(len(by_class)) - np.repeat(first, sizes)
    keep = manifest.split != "train"
    keep[by_class[position_in_class < most[manifest.labels[by_class]]]] = True
    return manifest.subset(keep)


def _shuffled_classes(manifest: Manifest) -> NDArray[np.int64]:
    """Return the training classes in a random order that is the same in every run."""
    return np.random.default_rng(0).permutation(np.unique(manifest.labels[manifest.rows("train")]))
