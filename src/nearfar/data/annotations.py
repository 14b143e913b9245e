"""Optional annotations of samples: several labels, a group, a camera, the ancestors of the class, and pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.data.pair_table import PairTable
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

Rows = slice | NDArray[np.int64]


@dataclass(frozen=True)
class Annotations:
    """Further columns of a manifest with N samples.

    Attributes:
        label_sets: Multi-hot labels [N, L], if samples have several labels. Two samples that share a label are
            positives of each other.
        group: Group of each sample [N]. The results of a query exclude samples of its own group, for example frames of
            the same video.
        camera: Camera of each sample [N]. The results of a query exclude samples that have both its class and its
            camera.
        pairs: Pairs of samples that do or do not belong together, for data without classes.
        levels: Ancestors of the class of each sample [N, L], from the parent to the root; see `nearfar.data.taxonomy`.
    """

    label_sets: NDArray[np.bool_] | None = None
    group: NDArray[np.int64] | None = None
    camera: NDArray[np.int64] | None = None
    levels: NDArray[np.int64] | None = None
    pairs: PairTable | None = None

    def take(self, rows: Rows) -> Annotations:
        """Return the annotations of the samples at the given rows."""
        names = ("label_sets", "group", "camera", "levels")
        columns: dict[str, Any] = {name: getattr(self, name) for name in names}
        pairs = None if self.pairs is None else self.pairs.take(rows)
        taken = {name: None if column is None else column[rows] for name, column in columns.items()}
        return Annotations(**taken, pairs=pairs)

    @property
    def digest(self) -> str:
        """A hash of all columns."""
        digest = hashlib.sha256()
        for column in (self.label_sets, self.group, self.camera):
            digest.update(b"none" if column is None else f"{column.shape}".encode() + column.tobytes())
        if self.levels is not None:
            digest.update(f"levels {self.levels.shape}".encode() + self.levels.tobytes())
        if self.pairs is not None:
            digest.update(self.pairs.digest.encode())
        return digest.hexdigest()


def read_annotations(
    path: Path,
    columns: Mapping[str, list[str]],
    *,
    label: str = "label",
    separator: str | None = None,
    group: str | None = None,
    camera: str | None = None,
) -> tuple[dict[str, list[str]], Annotations | None]:
    """Read the annotations of a table from its columns.

    Args:
        path: Path of the table, for error messages.
        columns: The cells of each column.
        label: Name of the column with labels. If a row has several labels, the first one becomes its class.
        separator: Character between the labels of a row, such as "|". None if each row has one label.
        group, camera: Names of the columns with groups and cameras.

    Returns:
        The columns and the annotations (None if there are none). With `separator`, the returned label column holds only
        the first label of each row.

    Raises:
        NearfarError: If a column is missing.
    """
    for name, column in (("group", group), ("camera", camera)):
        if column is not None and column not in columns:
            known = ", ".join(columns)
            raise NearfarError(
                f"{path} has no column {column!r} for data.{name} (it has {known}){suggest(column, columns)}"
            )
    changed, sets = dict(columns), None
    if separator is not None and label in columns:
        lists = [[part.strip() for part in cell.split(separator) if part.strip()] for cell in columns[label]]
        changed[label] = [parts[0] if parts else "" for parts in lists]
        sets = _multi_hot(lists)
    annotations = Annotations(
        sets,
        None if group is None else _numbers(columns[group]),
        None if camera is None else _numbers(columns[camera]),
    )
    is_empty = sets is None and group is None and camera is None
    return changed, None if is_empty else annotations


def _multi_hot(lists: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
    column = {name: i for i, name in enumerate(sorted({name for names in lists for name in names}))}
    sets = np.zeros((len(lists), len(column)), dtype=np.bool_)
    for row, names in enumerate(lists):
        sets[row, [column[name] for name in names]] = True
    return sets


def _numbers(values: Sequence[Any]) -> NDArray[np.int64]:
    return np.unique(np.asarray(values), return_inverse=True)[1].astype(np.int64)
