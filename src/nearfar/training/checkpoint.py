"""A state on disk: one safetensors file with the tensors, and the rest as JSON in its header. No pickle.

One file is there whole or not at all, so a run that is killed at any moment finds the state before or the one after.
Its header also has a sha256 of everything, so that damage is found before it is trained on (files of earlier versions
have none).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nearfar.errors import NearfarError
from nearfar.files import atomic

KEY = "nearfar"


def save_state(path: Path, state: Any, *, before: Path | None = None) -> None:
    """Write a tree of dicts, lists, tuples, numbers, strings, None and tensors, at once or not at all.

    `before`: a name for what is at `path` already, which else is gone.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, "", tensors)
    write_tensors(path, tensors, tree, before=before)


def load_state(path: Path) -> Any:
    """The tree that `save_state` wrote, on the CPU."""
    try:
        tensors, tree = read_tensors(path)
    except FileNotFoundError:
        raise NearfarError(f"{path}: there is no such file") from None
    except KeyError:
        raise NearfarError(f"{path}: is no state that nearfar wrote") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise NearfarError(f"{path}: is damaged ({error}): remove it") from None
    try:
        return _decode(tree, tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise NearfarError(f"{path}: is no state that nearfar wrote ({error}): remove it") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Any, *, before: Path | None = None) -> None:
    """A safetensors file with a tree of plain values in its header, at once or not at all."""
    # clone: safetensors refuses tensors that share memory
    stored = {name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}
    text = json.dumps(header)
    with atomic(path) as draft:
        try:
            save_file(stored, draft, metadata=sealed(stored, text))
        except SafetensorError as error:
            raise NearfarError(f"{path}: cannot be written ({error}): check the disk and permissions") from error
        if before is not None and path.exists():
            os.replace(path, before)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors and the header that `write_tensors` wrote; KeyError where there is none, ValueError for damage."""
    with safe_open(path, framework="pt", device="cpu") as file:
        text, _, total = (file.metadata() or {})[KEY].partition("\n")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    if total not in ("", checksum(tensors, text)):
        raise ValueError("its sha256 is not that of its header")
    try:
        return tensors, json.loads(text)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None


def sealed(tensors: Mapping[str, Tensor], text: str) -> dict[str, str]:
    """The header of a file: the text, and in a line of its own the checksum.

    One entry, because safetensors writes several in any order, and the same state should give the same bytes.
    """
    return {KEY: f"{text}\n{checksum(tensors, text)}"}


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """sha256 (hex) over the header and names, types, shapes and bytes of the tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        each = tensors[name]
        digest.update(f"\n{name} {each.dtype} {list(each.shape)}\n".encode())
        if each.numel():
            digest.update(each.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value
        # a fused optimizer reads its state in the layout of the parameter, whatever the state's own is
        return {"channels last" if _channels_last(value) else "tensor": name}
    if isinstance(value, dict):
        items = []
        for key, each in value.items():
            if not isinstance(key, str | int):
                raise TypeError(f"{name}: a key must be a string or a whole number, got {key!r}")
            items.append([key, _encode(each, f"{name}/{key}", tensors)])
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(each, f"{name}/{i}", tensors) for i, each in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name or 'the state'}: cannot be stored without pickle, got {type(value).__name__}")


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    (kind, inner), *_ = tree.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "channels last":
        return tensors[inner].contiguous(memory_format=torch.channels_last)
    if kind == "dict":
        return {key: _decode(each, tensors) for key, each in inner}
    parts = [_decode(each, tensors) for each in inner]
    return parts if kind == "list" else tuple(parts)


def _channels_last(value: Tensor) -> bool:
    return value.ndim == 4 and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)
