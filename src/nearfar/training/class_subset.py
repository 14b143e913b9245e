"""Choose a subset of the classes with all their samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sample_whole_classes(labels: NDArray[np.int64], limit: int, *, min_classes: int = 1) -> NDArray[np.int64]:
    """Choose random classes and return the rows of all their samples. The choice depends only on the arguments.

    Args:
        labels: The class of every sample [N].
        limit: Maximum number of rows. It is exceeded only if the first `min_classes` chosen classes have more rows.
        min_classes: Minimum number of classes.

    >>> sample_whole_classes(np.array([5, 5, 5, 7, 7, 9]), 4).tolist()
    [0, 1, 2, 5]
    >>> sample_whole_classes(np.array([5, 5, 5]), 2).tolist()
    [0, 1, 2]
    """
    classes, counts = np.unique(labels, return_counts=True)
    order = np.random.default_rng(0).permutation(len(classes))
    number = max(min_classes, int((np.cumsum(counts[order]) <= limit).sum()))
    return np.flatnonzero(np.isin(labels, classes[order[:number]]))
