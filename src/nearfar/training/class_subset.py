"""A part of the samples that has every sample of its classes, so that its scores mean what those of a split mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sample_whole_classes(labels: NDArray[np.int64], most: int) -> list[int]:
    """At most so many rows, all of some classes by chance (always the same); of one class where none fits, its first.

    >>> sample_whole_classes(np.array([5, 5, 5, 7, 7, 9]), 4)
    [0, 1, 2, 5]
    >>> sample_whole_classes(np.array([5, 5, 5]), 2)
    [0, 1]
    """
    classes, counts = np.unique(labels, return_counts=True)
    order = np.random.default_rng(0).permutation(len(classes))
    kept = order[np.cumsum(counts[order]) <= most]
    rows = np.flatnonzero(np.isin(labels, classes[kept if len(kept) else order[:1]]))
    found: list[int] = rows[:most].tolist()
    return found
