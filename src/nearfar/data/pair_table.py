"""Pairs of samples that do or do not belong together, for data without classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.validation import Floats, Ints

POSITIVE = 0.5  # pairs with at least this grade are positive


@dataclass(frozen=True, eq=False)
class PairTable:
    """P pairs of the N samples of a manifest.

    Attributes:
        first, second: Row numbers of the two samples of each pair [P].
        grade: 1 if the two samples belong together, 0 if they do not, or a number in between [P].
        groups: Group of each sample [N]. Samples that are connected by a chain of positive pairs are in the same group.
    """

    first: Ints
    second: Ints
    grade: Floats
    groups: Ints

    def __len__(self) -> int:
        return len(self.first)

    @property
    def is_graded(self) -> bool:
        """Whether the table has a grade other than 0 and 1."""
        return not bool(np.isin(self.grade, (0, 1)).all())

    @property
    def digest(self) -> str:
        """A hash of all pairs."""
        columns = (self.first, self.second, self.grade, self.groups)
        return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()

    def take(self, rows: slice | NDArray[np.int64]) -> PairTable:
        """Return the table for the given samples: the pairs whose two samples are both kept, with new row numbers."""
        place = np.full(len(self.groups), -1, dtype=np.int64)
        kept = np.arange(len(self.groups))[rows]
        place[kept] = np.arange(len(kept))
        first, second = place[self.first], place[self.second]
        both = (first >= 0) & (second >= 0)
        return PairTable(first[both], second[both], self.grade[both], self.groups[kept])

    def relation(self, rows: Tensor) -> Tensor:
        """Return a matrix [B, B] with the relation of every two samples of a batch.

        For a pair in the table, the relation is its grade. For other pairs, it is 0 (negative) if the samples are in
        different groups, and NaN (unknown) if they are in the same group.
        """
        index = rows.cpu().numpy()
        groups = self.groups[index]
        relation = np.where(groups[:, None] == groups, np.nan, 0.0)
        keys, grades = self._sorted_pairs
        wanted = index[:, None] * len(self.groups) + index
        place = np.searchsorted(keys, wanted).clip(max=max(len(keys) - 1, 0))
        if len(keys):
            relation = np.where(keys[place] == wanted, grades[place], relation)
        return torch.from_numpy(relation)

    @cached_property
    def _sorted_pairs(self) -> tuple[Ints, Floats]:
        """Return the sorted keys i * N + j of all pairs (i, j) and (j, i), and the grade of each key."""
        n = len(self.groups)
        keys = np.concatenate([self.first * n + self.second, self.second * n + self.first])
        order = np.argsort(keys, kind="stable")
        return keys[order], np.concatenate([self.grade, self.grade])[order]


def connect(first: Ints, second: Ints, samples: int) -> Ints:
    """Return the group number of each sample. The two samples of a pair are in the same group.

    Groups are numbered in the order of their first samples.

    >>> connect(np.array([0, 3]), np.array([2, 4]), 5).tolist()
    [0, 1, 0, 2, 2]
    """
    root = list(range(samples))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for i, j in zip(first.tolist(), second.tolist(), strict=True):
        low, high = sorted((find(i), find(j)))
        root[high] = low
    return np.unique([find(i) for i in range(samples)], return_inverse=True)[1].astype(np.int64)
