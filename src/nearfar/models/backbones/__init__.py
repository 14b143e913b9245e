"""Backbones: one module for each network, which registers a constructor and its public weight file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from nearfar.models.backbones.base import Backbone
from nearfar.models.weights import WeightFile, find_weights, load_tensors, read_tensors, select_backbone
from nearfar.registry import Registry
from nearfar.validation import check_count

BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone", package="nearfar.models.backbones")
LIBRARIES = ("transformers:", "timm:")
Constructor = TypeVar("Constructor", bound=Callable[..., Backbone])
_weights: dict[str, WeightFile | None] = {}


def register(name: str, *, weights: WeightFile | None = None) -> Callable[[Constructor], Constructor]:
    """Return a decorator that registers a backbone: a class or function that takes `channels` and returns a `Backbone`.

    Args:
        name: Name of the backbone in `create`, `create_embedder` and the setting model.backbone.
        weights: The public weight file that pretrained=True loads, if there is one.
    """

    def add(constructor: Constructor) -> Constructor:
        BACKBONES.register(name)(constructor)
        _weights[name] = weights
        return constructor

    return add


def names() -> list[str]:
    """Return the names of all registered backbones. `create` also accepts "transformers:NAME" and "timm:NAME"."""
    return BACKBONES.names()


def create(name: str, *, channels: int | None = None, pretrained: bool | str | Path = False) -> Backbone:
    """Create a backbone by its name.

    Args:
        name: One of `names()`, "transformers:NAME_OR_DIRECTORY" or "timm:NAME".
        channels: Number of image channels (3 by default, 1 for "small" and "small-conv"), or the length of the vectors
            for "features".
        pretrained: False initializes the weights randomly (He et al.). True loads the public weights from their package
            or from the folder of torch.hub; nothing is downloaded. A path loads this file: .safetensors or a state
            dict, with the names of the public file or of nearfar. From the model of a run (model.safetensors), the
            backbone is loaded.

    Raises:
        ValueError: If the name is unknown. The message suggests the nearest one.

    >>> create("resnet81")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown backbone 'resnet81'; did you mean 'resnet18'? Known: bn-inception, ...
    """
    if name.startswith(LIBRARIES):
        from nearfar.models.backbones.hub import create_from_library

        return create_from_library(name, channels=channels, pretrained=pretrained)
    options: dict[str, Any] = {} if channels is None else {"channels": check_count("channels", channels)}
    backbone: Backbone = BACKBONES.create(name, **options)
    if pretrained is not False and pretrained is not None:
        weights = _weights[name]
        if pretrained is not True:
            path = Path(str(pretrained))
        elif weights is not None:
            path = find_weights(weights)
        else:
            raise ValueError(f"backbone {name!r} has no public weights: use pretrained=False or the path of a file")
        load_tensors(backbone, select_backbone(read_tensors(path)), weights, origin=path.name)
    return backbone
