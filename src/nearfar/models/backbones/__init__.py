"""Backbones: one module for each network. A module registers the network and, if there is one, its weight file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nearfar.models.backbones.base import Backbone
from nearfar.models.weights import WeightFile, find_weights, load_tensors, read_tensors, select_backbone
from nearfar.registry import Registry
from nearfar.validation import check_count

BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone", package="nearfar.models.backbones")
LIBRARIES = ("transformers:", "transformers-text:", "timm:", "all-minilm-l6-v2")
Constructor = TypeVar("Constructor", bound=Callable[..., Backbone])
_weights: dict[str, WeightFile | None] = {}


def register(name: str, *, weights: WeightFile | None = None) -> Callable[[Constructor], Constructor]:
    """Return a decorator that registers a backbone: a class or function that takes `channels` and returns a `Backbone`.

    Args:
        name: Name of the backbone in `create`, `create_embedder` and the setting model.backbone.
        weights: Description of the public weight file that pretrained=True loads. None if there is no such file.
    """

    def add(constructor: Constructor) -> Constructor:
        BACKBONES.register(name)(constructor)
        _weights[name] = weights
        return constructor

    return add


def names() -> list[str]:
    """Return the names of all registered backbones. `create` also accepts those of other libraries."""
    return BACKBONES.names()


def create(
    name: str,
    *,
    channels: int | None = None,
    pretrained: bool | str | Path = False,
    download: bool = False,
    definition: dict[str, Any] | None = None,
) -> Backbone:
    """Create a backbone by its name.

    Args:
        name: One of `names()`, "transformers:NAME_OR_DIRECTORY", "timm:NAME" or "all-minilm-l6-v2" (for texts). If a
            model of transformers has a part for images and one for texts, as CLIP has, "transformers:" uses the part
            for images, and "transformers-text:" the one for texts.
        channels: Number of image channels (3 by default, 1 for "small" and "small-conv"), or the length of the vectors
            for "features".
        pretrained: False initializes the weights randomly (He et al., arXiv 1502.01852). True loads the public weights
            from an installed package or from the folder of torch.hub; nothing is downloaded. A path loads a file
            (.safetensors or a PyTorch state dict) with the tensor names of the public file or of nearfar. If the file
            is the model.safetensors of a run, only its backbone is loaded.
        download: Whether to download a model of transformers that is not on this machine.
        definition: `Backbone.definition` of the same network, with which a transformer needs no files.

    Raises:
        ValueError: If the name is unknown. The message suggests a similar name.

    >>> create("resnet81")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown backbone 'resnet81'; did you mean 'resnet18'? Known: bn-inception, ...
    """
    if name.startswith(LIBRARIES):
        from nearfar.models.backbones.hub import create_from_library

        return create_from_library(
            name, channels=channels, pretrained=pretrained, download=download, definition=definition
        )
    options: dict[str, Any] = {} if channels is None else {"channels": check_count("channels", channels)}
    backbone: Backbone = BACKBONES.create(name, **options)
    if pretrained is not False and pretrained is not None:
        weights = _weights[name]
        if pretrained is not True:
            path = Path(str(pretrained))
        elif weights is not None:
            path = find_weights(weights)
        else:
            raise ValueError(f"backbone {name!r} has no public weights: set pretrained to False or a file path")
        load_tensors(backbone, select_backbone(read_tensors(path)), weights, origin=path.name)
    return backbone
