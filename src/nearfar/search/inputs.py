"""What may be put into an index, and errors that name the argument, what arrived and what to do."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.metrics.inputs import Embeddings
from nearfar.search.nearest import Floats, Ints
from nearfar.validation import check_embeddings


def unit_rows(name: str, vectors: Embeddings, *, dim: int | None = None, check: bool = True) -> Floats:
    """Float32 rows of unit length, a copy; zero rows stay zero, and there may be no rows, [0, d].

    In few calls, because each counts beside a search in a graph; check=False leaves that to the caller.
    """
    rows = float_rows(name, vectors, dim=dim)
    if check:
        check_lengths(name, rows)
    faiss.normalize_L2(rows)
    return rows


def check_lengths(name: str, rows: Floats) -> None:
    """Every row is of numbers, and its length is one too."""
    if len(rows):
        check_embeddings(name, torch.from_numpy(rows))


def float_rows(name: str, vectors: Embeddings, *, dim: int | None = None) -> Floats:
    """Numbers [N, d] as float32, a copy."""
    given = vectors.detach().cpu().numpy() if isinstance(vectors, Tensor) else np.asarray(vectors)
    if given.ndim != 2 or not given.shape[1] or given.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be numbers [N, d], got {given.dtype} of shape {list(given.shape)}")
    if dim not in (None, given.shape[1]):
        raise ValueError(f"{name} must have {dim} columns, got shape {list(given.shape)}")
    rows: Floats = np.array(given, dtype=np.float32, order="C")
    return rows


def check_at_least_one(value: int, name: str = "k") -> int:
    """A whole number of at least 1."""
    if not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def new_ids(ids: ArrayLike | None, count: int, taken: Ints) -> Ints:
    """Ids of new vectors: distinct, 0 or above, not among those taken; counted on from the largest by default."""
    if ids is None:
        start = int(taken.max()) + 1 if len(taken) else 0
        return np.arange(start, start + count)
    numbers = np.asarray(ids)
    if numbers.shape != (count,) or (count and numbers.dtype.kind not in "iu"):
        raise ValueError(f"ids must be whole numbers [{count}], got {numbers.dtype} of shape {list(numbers.shape)}")
    numbers = numbers.astype(np.int64)
    if count and int(numbers.min()) < 0:
        raise ValueError(f"ids must be 0 or above (-1 says that nothing was found), got {numbers.min()}")
    values, times = np.unique(numbers, return_counts=True)
    if (times > 1).any():
        raise ValueError(f"ids must be distinct, {values[times > 1][0]} is there {times.max()} times")
    if np.isin(numbers, taken).any():
        raise ValueError(f"ids must be new, {numbers[np.isin(numbers, taken)][0]} is in the index already")
    return numbers


def class_numbers(labels: ArrayLike | None, count: int) -> Ints | None:
    """Labels [N] as they are given; None where there are none."""
    if labels is None:
        return None
    numbers = np.asarray(labels)
    if numbers.shape != (count,) or (count and numbers.dtype.kind not in "iu"):
        raise ValueError(f"labels must be class numbers [{count}], got {numbers.dtype} of shape {list(numbers.shape)}")
    return numbers.astype(np.int64)


def check_classes(labels: Ints | None, classes: tuple[str, ...]) -> None:
    """Every label has a name."""
    if len(set(classes)) != len(classes):
        raise ValueError("classes must be distinct names")
    if labels is not None and len(labels) and (labels.min() < 0 or labels.max() >= len(classes)):
        raise ValueError(f"labels must be 0..{len(classes) - 1}, got {labels.min()}..{labels.max()}: pass classes=")


def number_names(labels: Ints) -> tuple[str, ...]:
    """Names for labels that come without: their numbers."""
    most = int(labels.max(initial=-1)) + 1
    if most > 1 << 20:
        raise ValueError(f"labels go up to {most - 1}: number them from 0 and pass their names as classes=")
    return tuple(str(number) for number in range(most))


def names_of(names: Sequence[str] | None, ids: Ints) -> list[str]:
    """What the samples are called: by default "row" and their id."""
    if names is None:
        return [f"row {number}" for number in ids.tolist()]
    if len(names) != len(ids) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names must be {len(ids)} strings, one for each vector, got {len(names)}")
    return list(names)
