"""Checkpoint files: a safetensors file with all tensors, and everything else as JSON in its header. No pickle.

Files are written atomically, so a run that is killed at any moment leaves either the previous state or the new one.
The header contains a sha256 of the contents, so that loading detects damage. Files written by earlier versions of
nearfar have no sha256 and are not checked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearfar.errors import NearfarError
from nearfar.files import atomic

KEY = "nearfar"


def save_state(path: Path, state: Any, *, previous: Path | None = None) -> None:
    """Write a tree of dicts, lists, tuples, numbers, strings, None and tensors to a file, atomically.

    Args:
        path: The file.
        state: The tree.
        previous: Path to which an existing file at `path` is moved first; None overwrites the existing file.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "", tensors)
    write_tensors(path, tensors, tree, previous=previous)


def load_state(path: Path) -> Any:
    """Load a tree that `save_state` wrote, with its tensors on the CPU."""
    try:
        tensors, tree = read_tensors(path)
    except FileNotFoundError:
        raise NearfarError(f"{path}: the file does not exist") from None
    except KeyError:
        raise NearfarError(f"{path}: the file is not a nearfar checkpoint") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise NearfarError(f"{path}: the file is damaged ({error}): remove it") from None
    try:
        return _decode(tree, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise NearfarError(f"{path}: the file is not a nearfar checkpoint ({error}): remove it") from None


def load_newest(files: Sequence[Path], load: Callable[[Path], object], say: Callable[[str], object]) -> Path | None:
    """Load the first file that can be loaded, and return its path. Return None if none of the files exists.

    Args:
        files: Checkpoints, the newest first.
        load: Function that loads a checkpoint. It raises a NearfarError if the checkpoint cannot be used.
        say: Function that is called with a warning for each checkpoint that was passed over.

    Raises:
        NearfarError: If none of the files can be loaded. This is the error of the newest one.
    """
    errors: list[NearfarError] = []
    for file in files:
        if not file.is_file():
            continue
        try:
            load(file)
        except NearfarError as error:
            errors.append(error)
            continue
        for problem in errors:
            say(f"warning: {problem}; resuming from the previous checkpoint")
        return file
    if errors:
        raise errors[0]
    return None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Any, *, previous: Path | None = None) -> None:
    """Write a safetensors file atomically, with `header` as JSON in its metadata. See `save_state` for `previous`."""
    # clone: safetensors rejects tensors that share memory
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(header)
    with atomic(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode  # restored below, because safetensors creates files that only their owner can read
        try:
            save_file(copies, draft, metadata=make_metadata(copies, text))
            draft.chmod(mode)
        except SafetensorError as error:
            raise NearfarError(f"{path}: cannot write the file ({error}): check disk space and permissions") from error
        if previous is not None and path.exists():
            os.replace(path, previous)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read the tensors and the header of a file that `write_tensors` wrote.

    Raises:
        KeyError: If the file has no nearfar header.
        SafetensorError: If the file is not a valid safetensors file.
        ValueError: If the contents differ from the checksum, or the header is not valid JSON.
    """
    with safe_open(path, framework="pt", device="cpu") as file:
        text, _, total = (file.metadata() or {})[KEY].partition("\n")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not a dict
    if total not in ("", checksum(tensors, text)):
        raise ValueError("its sha256 differs from the one in its header")
    try:
        return tensors, json.loads(text)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None


def make_metadata(tensors: Mapping[str, Tensor], text: str) -> dict[str, str]:
    """Return the metadata of a file: one entry that holds `text` and, on the next line, the checksum.

    There is only one entry because safetensors writes several entries in an unspecified order, but the same state must
    give the same bytes.
    """
    return {KEY: f"{text}\n{checksum(tensors, text)}"}


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """Compute the sha256 (hex) of `text` and of the names, types, shapes and bytes of the tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value
        # record the memory layout, because a fused optimizer expects its state in the layout of the parameter
        return {"channels last" if _channels_last(value) else "tensor": name}
    if isinstance(value, dict):
        items = []
        for key, inner in value.items():
            if not isinstance(key, str | int):
                raise TypeError(f"{name}: a key must be a string or an integer, got {key!r}")
            items.append([key, _encode(inner, f"{name}/{key}", tensors)])
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(inner, f"{name}/{i}", tensors) for i, inner in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    known = "tensors, numbers, strings, None, lists, tuples and dicts"
    raise TypeError(f"{name or 'the state'}: a checkpoint can hold {known}, got {type(value).__name__}")


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    (kind, inner), *_ = tree.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "channels last":
        return tensors[inner].contiguous(memory_format=torch.channels_last)
    if kind == "dict":
        return {key: _decode(value, tensors) for key, value in inner}
    parts = [_decode(value, tensors) for value in inner]
    return parts if kind == "list" else tuple(parts)


def _channels_last(value: Tensor) -> bool:
    return value.ndim == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
