"""Save and load an embedder as a safetensors file, with its settings in the header."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.errors import NearfarError
from nearfar.formatting import counted
from nearfar.models import Embedder, create_embedder
from nearfar.models.backbones import BACKBONES, is_built_in
from nearfar.models.own_network import LIBRARIES, is_own_code, is_trusted
from nearfar.training.checkpoint import read_tensors, write_tensors


def save_embedder(
    embedder: Embedder, path: Path, about: dict[str, Any] | None = None, *, weights: dict[str, Tensor] | None = None
) -> None:
    """Save an embedder as a safetensors file that `load_embedder` reads.

    Args:
        embedder: The embedder. Its settings go into the header of the file.
        path: The file.
        about: More entries for the header.
        weights: Weights to save instead of those of the embedder, for example the complete weights of a sharded
            embedder, or weights into which the updates of LoRA are merged.
    """
    tensors = embedder.state_dict() if weights is None else weights
    write_tensors(path, tensors, {"embedder": embedder.config | {"pretrained": False}, **(about or {})})


def load_embedder(path: Path, network: nn.Module | None = None) -> Embedder:
    """Load an embedder that `save_embedder` saved, and set it to evaluation mode.

    Args:
        path: The file.
        network: Your own network, needed if the network of the file cannot be created from a name. The weights are
            loaded into a copy of it. It can also be an embedder with the same backbone and head.

    Raises:
        NearfarError: If the file is missing or damaged, if `network` does not match it, or if it needs user code that
            this process is not allowed to import.
    """
    try:
        tensors, header = read_tensors(path)
        config = header["embedder"] | {"pretrained": False}
        name = config["backbone"]
        if network is None:
            check_code(path, name)
            _check_shapes(config, tensors)
            embedder = create_embedder(**config)
        elif isinstance(network, Embedder):
            embedder = copy.deepcopy(network)
        else:
            embedder = create_embedder(**config | {"backbone": copy.deepcopy(network)})
        embedder.config["backbone"] = name
        embedder.load_state_dict(tensors)
    except OwnCodeError:
        raise
    except Exception as error:  # a manipulated header can hold any name, type or size
        reason = str(error) or type(error).__name__
        if network is not None:
            raise NearfarError(
                f"{path}: the file is damaged or does not match the network that you passed ({reason}): pass a network "
                "with the architecture of the saved one, or save or copy the model again"
            ) from None
        raise NearfarError(
            f"{path}: the file is damaged or is not a nearfar model ({reason}): save or copy the model again"
        ) from None
    embedder.eval()
    return embedder


def truncate_embedder(embedder: Embedder, size: int | None) -> Embedder:
    """Return an embedder that outputs only the first `size` dimensions, or the embedder itself if `size` is None.

    Raises:
        NearfarError: If the embeddings have fewer than `size` dimensions.
    """
    try:
        return embedder if size is None else embedder.truncate(size)
    except ValueError as error:
        raise NearfarError(str(error)) from None


def digest_weights(embedder: Embedder) -> str:
    """Return the SHA-256 of the names, types, shapes and values of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(embedder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class OwnCodeError(NearfarError):
    """A model file needs a network that only the user's code can create."""


def check_code(path: Path, name: str) -> None:
    """Raise an error if the network `name` is user code that the user has not allowed this process to import.

    The file `path`, which contains the name, may come from somebody else, so importing that code could be unsafe.
    """
    if is_own_code(name) and name not in BACKBONES.names() and not is_trusted(name):
        module = name.partition(":")[0]
        raise OwnCodeError(
            f"{path}: its network is your own code, {name}: in Python, pass the network to nearfar.load as model= or "
            f"to Run as network=; in a command, allow the import with `nearfar --import {module} ...`"
        )


def _check_shapes(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Raise a ValueError if the tensors do not have the shapes that the header describes.

    The network is created on the meta device, so no memory is allocated for its weights.
    """
    name = config["backbone"]
    if name.startswith("timm:") or not (is_built_in(name) or name.startswith(LIBRARIES)):
        return  # timm or the user defines the backbone, and the header does not determine its size
    with torch.device("meta"):
        expected = create_embedder(**config).state_dict()
    wrong = [name for name in {**expected, **tensors} if name not in expected or name not in tensors]
    wrong += [name for name, value in expected.items() if name in tensors and value.shape != tensors[name].shape]
    if wrong:
        raise ValueError(f"the header does not match {counted(len(wrong), 'tensor')}, for example {wrong[0]}")
