"""A cache of tensors on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from nearfar.training.checkpoint import read_tensors, write_tensors


def load_or_compute(path: Path, key: Mapping[str, Any], compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors in a file. If the file is missing, damaged or has another key, compute and save them.

    Args:
        path: A safetensors file.
        key: Everything that the tensors depend on, as plain values: strings, numbers, lists.
        compute: A function that returns the tensors.
    """
    try:
        tensors, saved_key = read_tensors(path)
        if saved_key == dict(key):
            return tensors
    except (OSError, KeyError, ValueError, SafetensorError):
        pass
    tensors = compute()
    write_tensors(path, tensors, dict(key))
    return tensors
