"""Load weights from files.

No pickled code is executed, and the names and shapes of all tensors are checked before any parameter is changed. Public
weight files often use different tensor names than nearfar and contain a classifier that nearfar does not use.
`WeightFile` describes where to find such a file and how to convert its tensor names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nearfar.errors import NearfarError, install_hint
from nearfar.files import compute_sha256, expand_user

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class WeightFile:
    """Description of a public weight file.

    Attributes:
        files: Possible names of the file in the folder of torch.hub or in the package.
        source: Where to get the file, for error messages.
        rename: Function that maps the name of a tensor in the file to its name in nearfar, or to None if the tensor is
            not part of the backbone.
        change: Function that converts the tensors after renaming, for example from BGR to RGB input.
        distribution: PyPI package that contains the file. If None, the file is looked up in the folder of torch.hub.
        extra: Optional dependency group ("extra") of nearfar that installs this package.
        sha256: SHA-256 of the file in the package. If None, the file is not checked.
    """

    files: tuple[str, ...]
    source: str
    rename: Callable[[str], str | None]
    change: Callable[[Tensors], Tensors] = lambda tensors: tensors
    distribution: str | None = None
    extra: str | None = None
    sha256: str | None = None


def drop_prefixes(*prefixes: str) -> Callable[[str], str | None]:
    """Return a `WeightFile.rename` function that drops names with these prefixes and keeps all other names."""
    return lambda name: None if name.startswith(prefixes) else name


def find_weights(weights: WeightFile) -> Path:
    """Return the path of a weight file in its installed package or the folder of torch.hub. Nothing is downloaded."""
    if weights.distribution is not None:
        return _find_in_package(weights)
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for file in weights.files:
        if (folder / file).is_file():
            return folder / file
    raise NearfarError(
        f"{folder} has no file {' or '.join(weights.files)}: get it from {weights.source}, and "
        "copy it there or pass its path as pretrained"
    )


def _find_in_package(weights: WeightFile) -> Path:
    name = str(weights.distribution)
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        raise NearfarError(
            f"the weights are in the package {name}, which is not installed: {install_hint(str(weights.extra))}"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if file.name in weights.files and path.is_file():
            if weights.sha256 and compute_sha256(path) != weights.sha256:
                raise NearfarError(f"{path} is not the published file (its SHA-256 differs): install {name} again")
            return path
    raise NearfarError(f"the package {name} has no {' or '.join(weights.files)}: install {name} again")


def read_tensors(path: str | Path) -> Tensors:
    """Return the tensors of a .safetensors file, or of a PyTorch state dict with `weights_only=True`.

    The state dict may be nested in {"state_dict": ...} or {"model": ...}. The prefix "module.", which DataParallel
    adds, is removed.
    """
    path = expand_user(path)
    if not path.is_file():
        raise NearfarError(f"there is no weight file {path}: check the path")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise NearfarError(f"{path} is not a state dict that can be read safely: {_first_line(error)}") from error
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise NearfarError(f"{path} is not a state dict: expected a dict of named tensors, got {type(state).__name__}")
    return {str(name).removeprefix("module."): value for name, value in state.items()}


def select_backbone(tensors: Tensors) -> Tensors:
    """Return the tensors of the backbone from those of an embedder, without the prefix "backbone." in their names.

    If no name has this prefix, all tensors are returned unchanged.

    >>> list(select_backbone({"backbone.conv.weight": torch.zeros(1), "head.linear.weight": torch.zeros(1)}))
    ['conv.weight']
    """
    prefix = "backbone."
    selected = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return selected or tensors


def load_tensors(module: nn.Module, tensors: Tensors, weights: WeightFile | None = None, *, origin: str = "") -> None:
    """Copy tensors into all parameters and buffers of a module.

    If a tensor is missing, unknown or has a different shape, nothing is changed and an error is raised. Only
    `num_batches_tracked` of batch norms may be missing, because old files do not contain it.

    Args:
        module: The module to load into.
        tensors: Dict that maps names to tensors.
        weights: Description of the file. It converts the names if they are not already those of the module.
        origin: Name of the file, for error messages.

    Raises:
        NearfarError: If the tensors do not fit the module.
    """
    state = dict(module.state_dict())
    if weights is not None and not set(tensors) <= set(state):
        named = ((weights.rename(name), value) for name, value in tensors.items())
        tensors = weights.change({name: value for name, value in named if name is not None})
    missing = [name for name in state if name not in tensors and not name.endswith("num_batches_tracked")]
    unknown = [name for name in tensors if name not in state]
    misshapen = [
        f"{name} {list(tensors[name].shape)} instead of {list(value.shape)}"
        for name, value in state.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    problems = [
        f"{len(names)} {what}: {_abbreviate(names)}"
        for what, names in (("missing", missing), ("unknown", unknown), ("with a different shape", misshapen))
        if names
    ]
    if problems:
        raise NearfarError(f"weights{f' of {origin}' if origin else ''} do not fit the model: {'; '.join(problems)}")
    module.load_state_dict({**state, **tensors})


def _abbreviate(names: Iterable[str], limit: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
