"""The samples of every class, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Classes:
    """`samples` [N] ordered by class: class c (by rank of its id) holds samples[starts[c] : starts[c] + sizes[c]]."""

    samples: Indices
    starts: Indices
    sizes: Indices

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def members(self) -> list[Indices]:
        """The samples of each class."""
        return np.split(self.samples, self.starts[1:])


def by_class(labels: object) -> Classes:
    """Classes of the samples with these ids [N].

    >>> by_class([7, 3, 7]).members
    [array([1]), array([0, 2])]
    """
    ids = np.asarray(labels)
    if ids.ndim != 1 or len(ids) == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"labels must be class ids [N], N at least 1, got {ids.dtype} of shape {list(ids.shape)}")
    order = np.argsort(ids, kind="stable").astype(np.int64)
    _, starts, sizes = np.unique(ids[order], return_index=True, return_counts=True)
    return Classes(order, starts.astype(np.int64), sizes.astype(np.int64))


def classes_per_batch(size: int, classes: int | None, per_class: int) -> int:
    """Return `classes`, or without it the number of whole classes that fit into `size` samples, at least 2.

    >>> classes_per_batch(128, None, 4), classes_per_batch(128, 8, 4), classes_per_batch(10, None, 3)
    (32, 8, 3)
    """
    for name, value in (("size", size), ("classes", classes), ("per_class", per_class)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return max(2, size // per_class) if classes is None else classes
