"""A query in words: the id of a sample, a vector in a .npy file, or a picture file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearfar.errors import NearfarError
from nearfar.search.encoder import Encoder
from nearfar.search.index import Index
from nearfar.search.nearest import Floats


@dataclass(frozen=True)
class Query:
    """What is looked for: its words, its vector [dim], the id it has in the index, the picture file it is."""

    words: str
    vector: Floats
    id: int | None = None
    file: Path | None = None


@dataclass(frozen=True)
class Hit:
    """A sample that was found."""

    rank: int
    id: int
    distance: float
    label: str | None
    name: str


def read_queries(words: str, index: Index, encoder: Encoder) -> list[Query]:
    """The queries that words stand for: one, or one for each row of a .npy file.

    A whole number is an id. Rows of a .npy file are embeddings, or for a run on vectors what goes into its network,
    which comes first where both have the same length.
    """
    if words.isascii() and words.isdecimal():
        # no id is longer than an int64
        number = min(int(words[:20]), 2**63 - 1)
        try:
            return [Query(words, index.vector_of(number), id=number)]
        except ValueError as error:
            raise NearfarError(str(error)) from None
    path = Path(words).expanduser()
    if not path.is_file():
        raise NearfarError(f"{words}: there is no such file: a query is a picture, a .npy of vectors or a sample's id")
    if path.suffix.lower() != ".npy":
        return [Query(words, encoder.file(path)[0], file=path)]
    rows = _rows(path)
    network = encoder.network
    if not network.backbone.pictures and rows.shape[1] == network.channels:
        rows = encoder.vectors(rows)
    elif rows.shape[1] != index.dim:
        also = "" if network.backbone.pictures else f" or {network.channels}"
        raise NearfarError(f"{words}: has vectors of {rows.shape[1]} numbers, the index has {index.dim}{also}")
    return [Query(words if len(rows) == 1 else f"{words} row {i}", row) for i, row in enumerate(rows)]


def find(index: Index, query: Query, k: int, *, label: tuple[str, ...] = ()) -> list[Hit]:
    """The k nearest samples; a sample that is looked for by its id is not its own neighbor."""
    own = query.id is not None
    try:
        distances, ids = index.search(query.vector[None], k + own, label=label or None)
    except ValueError as error:
        raise NearfarError(str(error)) from None
    real = (ids[0] >= 0) & (ids[0] != (query.id if own else -1))
    found, near = ids[0][real][:k], distances[0][real][:k]
    return [
        Hit(rank, int(number), float(distance), index.label_of(row), index.names[row])
        for rank, (number, distance, row) in enumerate(
            zip(found, near, index.rows_of(found).tolist(), strict=True), start=1
        )
    ]


def _rows(path: Path) -> Floats:
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise NearfarError(f"{path}: is no array that can be read ({error})") from None
    if rows.ndim == 1:
        rows = rows[None]
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or not rows.size or not np.isfinite(rows).all():
        raise NearfarError(f"{path}: must hold finite numbers [d] or [Q, d], got {rows.dtype} {list(rows.shape)}")
    found: Floats = rows.astype(np.float32)
    return found
