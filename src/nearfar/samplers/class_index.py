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
