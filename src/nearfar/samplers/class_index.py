"""An index of the samples of each class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfar.validation import Labels, as_class_labels

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ClassIndex:
    """Sample indices [N] grouped by class.

    Classes are numbered in the sorted order of their labels. The samples of class c are
    samples[starts[c] : starts[c] + sizes[c]].
    """

    samples: Indices
    starts: Indices
    sizes: Indices

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def members(self) -> list[Indices]:
        """Return the samples of each class, in the sorted order of the labels."""
        return np.split(self.samples, self.starts[1:])


def group_by_class(labels: Labels) -> ClassIndex:
    """Group the samples by class. The labels [N] are integers or strings.

    >>> group_by_class([7, 3, 7]).members
    [array([1]), array([0, 2])]
    >>> group_by_class(["dog", "cat", "dog"]).members
    [array([1]), array([0, 2])]
    """
    ids = as_class_labels(labels)
    order = np.argsort(ids, kind="stable").astype(np.int64)
    _, starts, sizes = np.unique(ids[order], return_index=True, return_counts=True)
    return ClassIndex(order, starts.astype(np.int64), sizes.astype(np.int64))


def classes_per_batch(size: int, classes: int | None, per_class: int) -> int:
    """Return the number of classes per batch: `classes`, or size // per_class (at least 2) if `classes` is None.

    >>> classes_per_batch(128, None, 4), classes_per_batch(128, 8, 4), classes_per_batch(10, None, 3)
    (32, 8, 3)
    """
    for name, value in (("size", size), ("classes", classes), ("per_class", per_class)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return max(2, size // per_class) if classes is None else classes
