"""A cache of tensors on disk, which several processes can share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from nearfar.directory_lock import lock_directory
from nearfar.training.checkpoint import read_tensors, write_tensors


def load_or_compute(path: Path, key: Mapping[str, Any], compute: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors in a file. If the file is missing, damaged or has a different key, compute and save them.

    If several processes need the tensors at the same time, one computes them and the others wait for it.

    Args:
        path: A safetensors file.
        key: Everything that the tensors depend on, as plain values: strings, numbers, lists.
        compute: A function that returns the tensors.
    """
    tensors = _load(path, key)
    if tensors is None:
        with lock_cached(path):
            tensors = _load(path, key)
            if tensors is None:
                tensors = compute()
                write_tensors(path, tensors, dict(key))
    return tensors


def lock_cached(path: Path) -> AbstractContextManager[None]:
    """Return a context manager that keeps other processes from computing a cached file or folder.

    If another process is computing it, wait until that process has finished.
    """
    remedy = "wait until it ends"
    return lock_directory(path.parent, path.name, state="is being written", remedy=remedy, wait=lambda _: None)


def _load(path: Path, key: Mapping[str, Any]) -> dict[str, Tensor] | None:
    try:
        tensors, saved_key = read_tensors(path)
    except (OSError, KeyError, ValueError, SafetensorError):
        return None
    return tensors if saved_key == dict(key) else None
