"""What may be passed to a loss, and errors that name the argument, what arrived and what to do.

Checks of shapes and types always run. Checks that look at values run in eager mode only: under torch.compile they would
break the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from nearfar.spelling import suggest

nearest = suggest


def check_embeddings(name: str, x: Tensor, *, dim: int | None = None) -> None:
    """[N, d] floating point, N and d at least 1, finite; d equal to `dim` where given."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a tensor [N, d], got {type(x).__name__}")
    if x.ndim != 2:
        raise ValueError(
            f"{name} must have shape [N, d], got shape {list(x.shape)}: flatten or pool to one row a sample"
        )
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise ValueError(f"{name} is empty, got shape {list(x.shape)}: skip empty batches")
    if not x.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {x.dtype}")
    if dim is not None and x.shape[1] != dim:
        raise ValueError(f"{name} must have {dim} columns, got shape {list(x.shape)}")
    if torch.compiler.is_compiling():
        return
    x = x.detach()
    length = torch.linalg.vector_norm(x, dim=1, dtype=None if x.dtype == torch.float64 else torch.float32)
    if not math.isfinite(float(length.sum())):
        raise ValueError(f"{name} {_why_not_finite(x, length)}")


def _why_not_finite(x: Tensor, length: Tensor) -> str:
    bad = (~torch.isfinite(x)).any(1).nonzero().flatten().tolist()
    if bad:
        cure = "lower the learning rate or find the bad input"
        return f"has NaN or infinite values in {len(bad)} of {len(x)} rows, the first is row {bad[0]}: {cure}"
    largest = float(x.abs().max())
    return f"is so large (up to {largest:.1e}) that the length of a row overflows {length.dtype}: scale it down"


def check_labels(name: str, labels: Tensor, *, rows: int, rows_name: str) -> None:
    """[N] integers, or [N, C] multi-hot of integers or booleans, one row for each embedding."""
    if not isinstance(labels, Tensor):
        raise ValueError(f"{name} must be an integer tensor, got {type(labels).__name__}: use torch.as_tensor")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name} must be integers (class ids) or multi-hot integers or booleans, got {labels.dtype}")
    if labels.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape [N] or, multi-hot, [N, C], got shape {list(labels.shape)}")
    if labels.ndim == 1 and labels.dtype == torch.bool:
        raise ValueError(f"{name} of shape [N] must be integers, got torch.bool: pass class ids, or multi-hot [N, C]")
    if labels.shape[0] != rows:
        raise ValueError(f"{name} has {labels.shape[0]} rows but {rows_name} has {rows}: pass one label a row")
    if labels.ndim == 2 and labels.dtype != torch.bool and not torch.compiler.is_compiling():
        odd = labels[(labels != 0) & (labels != 1)]
        if odd.numel():
            raise ValueError(f"{name} of shape [N, C] must be multi-hot (0 or 1), got the value {int(odd[0])}")


def check_weights(name: str, weights: Tensor, *, rows: int, rows_name: str) -> None:
    """[N] floating point, finite, not negative, one for each embedding."""
    if not isinstance(weights, Tensor):
        raise ValueError(f"{name} must be a tensor [N], got {type(weights).__name__}")
    if weights.shape != (rows,):
        raise ValueError(
            f"{name} must have shape [{rows}], one for each row of {rows_name}, got shape {list(weights.shape)}"
        )
    if not weights.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {weights.dtype}")
    if not torch.compiler.is_compiling() and not bool(((weights >= 0) & (weights < torch.inf)).all()):
        bad = int((~((weights >= 0) & (weights < torch.inf))).nonzero()[0])
        raise ValueError(f"{name} must be finite and not negative, got {float(weights[bad])} at {bad}")


def check_count(name: str, value: int) -> int:
    """Check that the value is an integer of at least 1, and return it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return value


def check_positive(name: str, value: float) -> float:
    """A finite number above zero."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a finite number above 0, got {value}")
    return value


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """One of the choices; otherwise an error that lists them and names the nearest."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}{nearest(str(value), choices)}"
        )
    return value
