"""What a caller may pass as embeddings, labels and ignored ids, and the errors for everything else.

Labels become class numbers by `numpy.unique` on the labels themselves: integers of any size and strings stay
exact and are never rounded to a float.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Array = NDArray[Any]
Ints = NDArray[np.int64]
Embeddings = Tensor | ArrayLike
Labels = Tensor | ArrayLike | Sequence[str]


def as_embeddings(embeddings: Embeddings, *, name: str, device: torch.device | None = None) -> Tensor:
    """A detached floating [N, d] tensor that shares memory with the input where it can.

    Integers become float32; half precision stays as it is (it is widened block by block later).
    """
    if isinstance(embeddings, Tensor):
        rows = embeddings.detach()
    else:
        try:
            array = np.asarray(embeddings)
            with warnings.catch_warnings():
                # torch warns that a read-only array (a memory map, say) could be written to; nothing here writes
                warnings.simplefilter("ignore", UserWarning)
                rows = torch.from_numpy(array if min(array.strides, default=0) >= 0 else array.copy())
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be an [N, d] array of numbers: {error}") from error
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"{name} must be [N, d] with at least one row and column, got shape {tuple(rows.shape)}")
    if rows.is_complex() or rows.dtype == torch.bool:
        raise ValueError(f"{name} must be real numbers, got {rows.dtype}")
    if not rows.is_floating_point():
        rows = rows.float()
    return rows if device is None else rows.to(device)


def as_labels(labels: Labels, rows: int | None, *, name: str) -> Array:
    """Labels as a numpy array: int64 (or Python ints beyond it) or str of shape [rows], or a bool multi-hot [rows, C].

    >>> as_labels([2**24, 2**24 + 1], 2, name="labels").tolist()
    [16777216, 16777217]
    >>> as_labels([[1, 0], [1, 1]], 2, name="labels").dtype
    dtype('bool')
    """
    array = _as_array(labels, name)
    if array.ndim not in (1, 2) or not array.size:
        raise ValueError(f"{name} must be [N] or multi-hot [N, C] and not empty, got shape {array.shape}")
    if rows is not None and len(array) != rows:
        raise ValueError(f"{name} must have one entry for each of the {rows} embeddings, got shape {array.shape}")
    if array.ndim == 2:
        return _multi_hot(array, name)
    if array.dtype.kind in "US":
        return array
    if array.dtype.kind in "bi":
        return array.astype(np.int64)
    if array.dtype.kind == "u":
        return array.astype(np.int64 if array.max() < 2**63 else object)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        return array.astype(str)
    if array.dtype.kind == "O" and all(isinstance(value, int | np.integer) for value in array):
        fits = all(-(2**63) <= value < 2**63 for value in array)
        return array.astype(np.int64) if fits else array
    raise ValueError(
        f"{name} must be integers, strings or multi-hot [N, C], got {array.dtype}: cast ids to an integer type"
    )


def _as_array(labels: Labels, name: str) -> Array:
    if isinstance(labels, Tensor):
        return labels.detach().cpu().numpy()
    if isinstance(labels, np.ndarray):
        return labels
    try:
        array = np.asarray(labels)
        # A list of large Python ints may come back as float64, which would merge ids: read it as objects instead.
        return np.asarray(labels, dtype=object) if array.ndim == 1 and array.dtype.kind == "f" else array
    except ValueError as error:
        raise ValueError(f"{name} must be [N] or multi-hot [N, C]: {error}") from error


def _multi_hot(array: Array, name: str) -> Array:
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"{name} of shape {array.shape} must be multi-hot (0 or 1); for one label a row pass shape [N]"
        )
    return array.astype(bool)


def same_kind(gallery: Array, queries: Array) -> None:
    """Raise if labels of queries and gallery cannot be compared (strings with integers, different widths)."""
    kinds = [("text" if a.dtype.kind in "US" else "integer", *a.shape[1:]) for a in (gallery, queries)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"labels of queries ({queries.dtype}, shape {queries.shape}) and gallery ({gallery.dtype}, shape "
            f"{gallery.shape}) must be of one kind: both integers, both strings, or multi-hot of the same width"
        )


def as_ignored(ignore: Sequence[ArrayLike] | Array | Tensor, queries: int, gallery: int) -> list[Ints]:
    """For every query the gallery positions that do not count, from lists of positions or a bool mask [Q, N]."""
    table = ignore.detach().cpu().numpy() if isinstance(ignore, Tensor) else ignore
    if isinstance(table, np.ndarray) and table.dtype == bool:
        if table.shape != (queries, gallery):
            raise ValueError(f"ignore as a mask must have shape {(queries, gallery)}, got {table.shape}")
        return [np.flatnonzero(row) for row in table]
    if len(table) != queries:
        raise ValueError(f"ignore must have one entry for each of the {queries} queries, got {len(table)}")
    return [_places(row, number, gallery) for number, row in enumerate(table)]


def _places(row: ArrayLike, number: int, gallery: int) -> Ints:
    places = np.asarray(row)
    if not places.size:
        return np.zeros(0, dtype=np.int64)
    if places.dtype.kind not in "iu" or places.ndim != 1:
        raise ValueError(f"ignore[{number}] must be a list of gallery positions, got {places.dtype}, {places.shape}")
    if places.min() < 0 or places.max() >= gallery:
        raise ValueError(f"ignore[{number}] has positions outside the gallery of {gallery} rows")
    return places.astype(np.int64)
