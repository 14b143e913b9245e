"""Check and convert the vectors, ids, labels and names of an index, and the vectors of queries."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from nearfar.search.exact import Vectors
from nearfar.validation import Embeddings, Ints, check_embeddings

MAX_UNNAMED_CLASSES = 1 << 20


def as_unit_vectors(name: str, vectors: Embeddings, *, dim: int | None = None, check: bool = True) -> Vectors:
    """Return a float32 copy [N, d] with rows of unit length. Zero rows stay zero, and N can be 0.

    `check=False` skips the check for NaN, infinity and overflow of the norm. An HNSW search is so fast that this check
    would take a noticeable part of its time.
    """
    copy = as_float32(name, vectors, dim=dim)
    if check:
        check_finite(name, copy)
    faiss.normalize_L2(copy)
    return copy


def check_finite(name: str, vectors: Vectors) -> None:
    """Raise a ValueError unless every vector and its norm are finite."""
    if len(vectors):
        check_embeddings(name, torch.from_numpy(vectors))


def as_float32(name: str, vectors: Embeddings, *, dim: int | None = None) -> Vectors:
    """Return a float32 copy of a numeric array of shape [N, d], where N can be 0."""
    array = vectors.detach().cpu().numpy() if isinstance(vectors, Tensor) else np.asarray(vectors)
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} must be a numeric array of shape [N, d], got {array.dtype} of shape {list(array.shape)}"
        )
    if dim not in (None, array.shape[1]):
        raise ValueError(f"{name} must have {dim} columns, got shape {list(array.shape)}")
    copy: Vectors = np.array(array, dtype=np.float32, order="C")
    return copy


def assign_ids(ids: ArrayLike | None, count: int, used: Ints) -> Ints:
    """Return the ids of new vectors: `ids` after a check, or consecutive ids after the largest used id.

    Args:
        ids: Distinct non-negative integers [count] that are not in `used`, or None.
        count: Number of new vectors.
        used: Ids that are already in the index.
    """
    if ids is None:
        start = int(used.max()) + 1 if len(used) else 0
        return np.arange(start, start + count)
    numbers = _as_integers("ids", ids, count, "integers")
    if count and int(numbers.min()) < 0:
        raise ValueError(f"ids must be 0 or above (-1 stands for no result), got {numbers.min()}")
    values, repeats = np.unique(numbers, return_counts=True)
    if (repeats > 1).any():
        raise ValueError(f"ids must be distinct, got {values[repeats > 1][0]} {repeats.max()} times")
    if np.isin(numbers, used).any():
        raise ValueError(f"ids must be new, but {numbers[np.isin(numbers, used)][0]} is already in the index")
    return numbers


def as_class_numbers(labels: ArrayLike | None, count: int) -> Ints | None:
    """Return labels as an int64 array [count], or None if `labels` is None."""
    return None if labels is None else _as_integers("labels", labels, count, "class numbers")


def _as_integers(name: str, values: ArrayLike, count: int, what: str) -> Ints:
    array = np.asarray(values)
    if array.shape != (count,) or (count and array.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be {what} of shape [{count}], got {array.dtype} of shape {list(array.shape)}")
    return array.astype(np.int64)


def check_classes(labels: Ints | None, classes: tuple[str, ...]) -> None:
    """Raise a ValueError unless class names are distinct and every label is an index into them."""
    if len(set(classes)) != len(classes):
        raise ValueError("classes must be distinct names")
    if labels is not None and len(labels) and (labels.min() < 0 or labels.max() >= len(classes)):
        remedy = ": pass the names of all classes as classes=" if labels.min() >= 0 else ""
        raise ValueError(f"labels must be in 0..{len(classes) - 1}, got {labels.min()}..{labels.max()}{remedy}")


def number_classes(labels: Ints) -> tuple[str, ...]:
    """Return default class names, which are the class numbers as strings."""
    count = int(labels.max(initial=-1)) + 1
    if count > MAX_UNNAMED_CLASSES:
        raise ValueError(
            f"labels go up to {count - 1}, but without class names they must be below {MAX_UNNAMED_CLASSES}: use "
            "consecutive class numbers from 0, or pass the class names as classes="
        )
    return tuple(str(number) for number in range(count))


def name_samples(names: Sequence[str] | None, ids: Ints) -> list[str]:
    """Check the names of samples and return them. If `names` is None, return "row 17" for the id 17."""
    if names is None:
        return [f"row {number}" for number in ids.tolist()]
    if len(names) != len(ids):
        raise ValueError(f"names must be {len(ids)} strings, one for each vector, got {len(names)}")
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"names must be strings, got {name!r}")
    return list(names)
