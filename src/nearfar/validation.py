"""Check and convert arguments. Each error names the argument and the value that was passed.

Checks of shapes and types always run. Checks of values run only where `nearfar.host_reads` allows them: not under
torch.compile, and only for tensors on the CPU unless the user requests them for all devices.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nearfar.host_reads import should_check_values
from nearfar.spelling import suggest

Array = NDArray[Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Embeddings = Tensor | ArrayLike
Labels = Tensor | ArrayLike | Sequence[str]


def check_embeddings(name: str, x: Tensor, *, dim: int | None = None) -> None:
    """Check that `x` is a non-empty floating-point tensor [N, d] whose values and row norms are finite.

    If `dim` is given, d must be equal to it.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a tensor of shape [N, d], got {type(x).__name__}")
    if x.ndim != 2:
        raise ValueError(
            f"{name} must have shape [N, d], got shape {list(x.shape)}: flatten or pool to one vector per sample"
        )
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise ValueError(f"{name} must not be empty, got shape {list(x.shape)}: skip empty batches")
    if not x.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {x.dtype}")
    if dim is not None and x.shape[1] != dim:
        raise ValueError(f"{name} must have {dim} columns, got shape {list(x.shape)}")
    if not should_check_values(x):
        return
    x, dtype = x.detach(), torch.float64 if x.dtype == torch.float64 else torch.float32
    # One norm of all values is faster than a norm per vector. If it is finite, so are the values and their norms.
    if math.isfinite(float(torch.linalg.vector_norm(x, dtype=dtype))):
        return
    norm = torch.linalg.vector_norm(x, dim=1, dtype=dtype)
    if not bool(torch.isfinite(norm).all()):
        raise ValueError(f"{name} {_describe_not_finite(x, norm)}")


def _describe_not_finite(x: Tensor, norm: Tensor) -> str:
    bad = (~torch.isfinite(x)).any(1).nonzero().flatten().tolist()
    if bad:
        cure = "lower the learning rate or find the bad input"
        return f"has NaN or infinite values in {len(bad)} of {len(x)} vectors, first in vector {bad[0]}: {cure}"
    largest = float(x.abs().max())
    return f"has values up to {largest:.1e}, so the norm of a vector overflows {norm.dtype}: scale them down"


def as_embeddings(embeddings: Embeddings, *, name: str, device: torch.device | None = None) -> Tensor:
    """Return a detached floating-point tensor [N, d] that shares memory with the input where possible.

    Integers become float32. Half precision is not converted here; callers convert it block by block.
    """
    if isinstance(embeddings, Tensor):
        x = embeddings.detach()
    else:
        try:
            array = np.asarray(embeddings)
            with warnings.catch_warnings():
                # torch warns that a read-only array, such as a memory map, could be written to; nothing writes to it
                warnings.simplefilter("ignore", UserWarning)
                x = torch.from_numpy(array if min(array.strides, default=0) >= 0 else array.copy())
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be an array of numbers of shape [N, d]: {error}") from error
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} must have shape [N, d] with N and d at least 1, got shape {tuple(x.shape)}")
    if x.is_complex() or x.dtype == torch.bool:
        raise ValueError(f"{name} must be real numbers, got {x.dtype}")
    if not x.is_floating_point():
        x = x.float()
    return x if device is None else x.to(device)


def check_labels(name: str, labels: Tensor, *, rows: int, rows_name: str) -> None:
    """Check that `labels` is a tensor of class ids [N], or a multi-hot tensor [N, C] for C classes.

    Args:
        name: The argument to name in error messages.
        labels: The labels.
        rows: The required N.
        rows_name: The argument that determines `rows`, such as "embeddings".
    """
    if not isinstance(labels, Tensor):
        raise ValueError(f"{name} must be an integer tensor, got {type(labels).__name__}: use torch.as_tensor")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name} must be integer class ids, or multi-hot integers or booleans, got {labels.dtype}")
    if labels.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape [N], or [N, C] if multi-hot, got shape {list(labels.shape)}")
    if labels.ndim == 1 and labels.dtype == torch.bool:
        raise ValueError(
            f"{name} of shape [N] must be integers, got torch.bool: pass class ids, or multi-hot labels of shape [N, C]"
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise ValueError(
            f"{name} has shape {list(labels.shape)}: pass class ids of shape [N], for example {name}.squeeze(1)"
        )
    if labels.shape[0] != rows:
        raise ValueError(f"{name} has {labels.shape[0]} entries but {rows_name} has {rows}: pass one label per sample")
    if labels.ndim == 2 and labels.dtype != torch.bool and should_check_values(labels):
        odd = labels[(labels != 0) & (labels != 1)]
        if odd.numel():
            raise ValueError(f"{name} of shape [N, C] must be multi-hot (0 or 1), got the value {int(odd[0])}")


def as_labels(labels: Labels, rows: int | None = None, *, name: str = "labels") -> Array:
    """Return labels as an array: class labels [N] as int64 or str, or multi-hot labels [N, C] as bool.

    Integers of any size stay exact, because they are never converted to floating point. If an integer does not fit into
    int64, the array has the dtype object.

    Args:
        labels: Integers or strings [N], or multi-hot labels [N, C] that contain only 0 and 1.
        rows: The required N. None accepts any N.
        name: The argument to name in error messages.

    >>> as_labels([2**24, 2**24 + 1], 2).tolist()
    [16777216, 16777217]
    >>> as_labels([[1, 0], [1, 1]], 2).dtype
    dtype('bool')
    """
    array = _as_array(labels, name)
    if array.ndim not in (1, 2) or not array.size:
        raise ValueError(
            f"{name} must have shape [N], or [N, C] if multi-hot, and must not be empty, got shape {array.shape}"
        )
    if rows is not None and len(array) != rows:
        raise ValueError(f"{name} must have one entry for each of the {rows} embeddings, got shape {array.shape}")
    if array.ndim == 2:
        return _as_multi_hot(array, name)
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
        f"{name} must be integers, strings or multi-hot labels of shape [N, C], got {array.dtype}: cast ids to an "
        "integer type"
    )


def _as_array(labels: Labels, name: str) -> Array:
    if isinstance(labels, Tensor):
        return labels.detach().cpu().numpy()
    if isinstance(labels, np.ndarray):
        return labels
    try:
        array = np.asarray(labels)
        # NumPy may convert a list of large Python ints to float64, where different ids can become equal: keep objects
        return np.asarray(labels, dtype=object) if array.ndim == 1 and array.dtype.kind == "f" else array
    except ValueError as error:
        raise ValueError(
            f"{name} must be class ids of shape [N] or multi-hot labels of shape [N, C]: {error}"
        ) from error


def _as_multi_hot(array: Array, name: str) -> Array:
    if array.shape[1] == 1:
        raise ValueError(f"{name} has shape {array.shape}: pass class ids of shape [N], for example {name}.reshape(-1)")
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"{name} of shape {array.shape} must be multi-hot (0 or 1): to give one label per sample, pass shape [N]"
        )
    return array.astype(bool)


def as_class_labels(labels: Labels, *, name: str = "labels") -> Array:
    """Return labels [N] as `as_labels` does. Raise a ValueError for multi-hot labels."""
    array = as_labels(labels, name=name)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape [N], one label per sample, got shape {array.shape}")
    return array


def as_label_tensor(labels: Labels, *, class_names: Sequence[str] | None = None, name: str = "labels") -> Tensor:
    """Return labels as a tensor for a loss: class ids [N], or multi-hot labels [N, C].

    Tensors and integers keep their values. Strings become their positions in `class_names`.

    Args:
        labels: Integers or strings [N], or multi-hot labels [N, C].
        class_names: The names of the classes 0, 1, ... The default is the distinct labels, sorted.
        name: The argument to name in error messages.

    >>> as_label_tensor(["dog", "cat", "dog"])
    tensor([1, 0, 1])
    >>> as_label_tensor(["dog"], class_names=["owl", "cat", "dog"])
    tensor([2])
    """
    if isinstance(labels, Tensor):
        return labels
    array = as_labels(labels, name=name)
    if array.dtype.kind in "US":
        if class_names is None:
            return torch.from_numpy(np.unique(array, return_inverse=True)[1])
        ids = {label: number for number, label in enumerate(class_names)}
        unknown = [label for label in array.tolist() if label not in ids]
        if unknown:
            raise ValueError(f"{name} contains the unknown class {unknown[0]!r}{suggest(str(unknown[0]), ids)}")
        return torch.tensor([ids[label] for label in array.tolist()])
    if array.dtype.kind == "O":
        raise ValueError(f"{name} contains an id that does not fit into int64: use ids below 2**63")
    return torch.from_numpy(array)


def as_signed_ids(labels: Tensor) -> Tensor:
    """Convert uint16, uint32 and uint64 labels to int64, because torch lacks most operations for these types.

    Other labels are returned unchanged. Different ids stay different: ids of 2**63 and above become negative.
    """
    return labels.to(torch.int64) if labels.dtype in (torch.uint16, torch.uint32, torch.uint64) else labels


def check_weights(name: str, weights: Tensor, *, rows: int, rows_name: str) -> None:
    """Check that `weights` is a floating-point tensor [N] of finite values of at least 0.

    The arguments are those of `check_labels`.
    """
    if not isinstance(weights, Tensor):
        raise ValueError(f"{name} must be a tensor of shape [N], got {type(weights).__name__}")
    if weights.shape != (rows,):
        raise ValueError(
            f"{name} must have shape [{rows}], one weight per sample of {rows_name}, got shape {list(weights.shape)}"
        )
    if not weights.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {weights.dtype}")
    if should_check_values(weights) and not bool(((weights >= 0) & (weights < torch.inf)).all()):
        bad = int((~((weights >= 0) & (weights < torch.inf))).nonzero()[0])
        raise ValueError(f"{name} must be finite and not negative, got {float(weights[bad])} at index {bad}")


def check_count(name: str, value: int) -> int:
    """Check that the value is an integer of at least 1, and return it."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)


def check_positive(name: str, value: float) -> float:
    """Check that the value is a finite number above 0, and return it."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return value


def check_not_negative(name: str, value: float) -> float:
    """Check that the value is a finite number of at least 0, and return it."""
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be finite and not negative, got {value}")
    return value


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """Check that the value is one of the choices, and return it. The error lists the choices and suggests one."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}{suggest(str(value), choices)}"
        )
    return value
