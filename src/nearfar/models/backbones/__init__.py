"""Backbones: one module for each network. A module registers the network and, if there is one, its weight file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

from torch import nn

from nearfar.formatting import counted
from nearfar.models.backbones.base import Backbone
from nearfar.models.own_network import LIBRARIES, OwnNetwork, is_own_code, load_constructor
from nearfar.models.weights import WeightFile, find_weights, load_tensors, read_tensors, select_backbone
from nearfar.registry import Registry
from nearfar.validation import check_count

BACKBONES: Registry[Callable[..., nn.Module]] = Registry("backbone", package="nearfar.models.backbones")
Constructor = TypeVar("Constructor", bound=Callable[..., nn.Module])
_weights: dict[str, WeightFile | None] = {}


@overload
def register(name: str, *, weights: WeightFile | None = None) -> Callable[[Constructor], Constructor]: ...


@overload
def register(name: str, constructor: Constructor, *, weights: WeightFile | None = None) -> Constructor: ...


def register(
    name: str, constructor: Callable[..., nn.Module] | None = None, *, weights: WeightFile | None = None
) -> Callable[..., Any]:
    """Register a backbone: a class or function that returns a `Backbone` or any other `nn.Module`.

    Args:
        name: Name of the backbone in `create`, `create_embedder` and the setting model.backbone.
        constructor: The class or function. If it has a parameter `channels`, the number of input channels is passed to
            it. If None, `register` returns a decorator for a class or function.
        weights: Description of the public weight file that pretrained=True loads. None if there is no such file.

    >>> net = register("tiny", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))
    >>> create("tiny").features
    8
    """

    def add(constructor: Constructor) -> Constructor:
        BACKBONES.register(name)(constructor)
        _weights[name] = weights
        return constructor

    return add if constructor is None else add(constructor)


def names() -> list[str]:
    """Return the names of all registered backbones. `create` also accepts models from other libraries."""
    return BACKBONES.names()


def is_built_in(name: str) -> bool:
    """Return whether nearfar itself defines this backbone, rather than the user or another library."""
    return name in BACKBONES.names() and BACKBONES.get(name).__module__.startswith("nearfar.")


def has_public_weights(name: str) -> bool:
    """Return whether pretrained=True loads weights for this backbone."""
    return name.startswith(LIBRARIES) or (name in BACKBONES.names() and _weights[name] is not None)


def create(
    name: str | nn.Module,
    *,
    channels: int | None = None,
    input_size: int | None = None,
    pretrained: bool | str | Path = False,
    download: bool = False,
    definition: dict[str, Any] | None = None,
    inputs: str | None = None,
) -> Backbone:
    """Create a backbone by its name, or return a network as a backbone.

    Args:
        name: One of `names()`, "transformers:NAME_OR_DIRECTORY", "timm:NAME", "all-minilm-l6-v2" (for texts),
            "MODULE:FUNCTION" or an `nn.Module`. For a two-part model such as CLIP, "transformers:" uses the image
            encoder and "transformers-text:" the text encoder. "MODULE:FUNCTION" imports the Python module, which runs
            its code, and calls the function or class.
        channels: Number of image channels (3 by default, 1 for "small" and "small-conv"), or the number of dimensions
            of the vectors for "features".
        pretrained: False initializes the weights randomly (He et al., arXiv 1502.01852), but an `nn.Module` keeps its
            weights. True loads the public weights from an installed package, from the folder of torch.hub or from the
            directory of a transformers model. A path loads a file (.safetensors or a PyTorch state dict) with the
            tensor names of the public file or of nearfar. If the file is the model.safetensors of a run, only its
            backbone is loaded.
        download: If True, a transformers model that is not on this machine is downloaded from the Hugging Face Hub.
            Nothing else is ever downloaded.
        definition: `Backbone.definition` of the same network. A transformers model is then created without its files.
        input_size: Side of the input images in pixels, or the maximum number of tokens of a text. The default is the
            backbone's.
        inputs: For a network that is not a `Backbone`: "images" (the default) or "vectors".

    Raises:
        ValueError: If the name is unknown. The message suggests a similar name.

    >>> create("resnet81")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: unknown backbone 'resnet81'; did you mean 'resnet18'? Known: bn-inception, ...
    """
    if isinstance(name, str) and name.startswith(LIBRARIES):
        from nearfar.models.backbones.hub import create_from_library

        backbone = create_from_library(
            name, channels=channels, pretrained=pretrained, download=download, definition=definition
        )
        if input_size is not None:
            backbone.set_input_size(input_size)
        return backbone
    network = name if isinstance(name, nn.Module) else _construct(name, channels)
    if isinstance(network, Backbone):
        backbone = network
        if input_size is not None:
            backbone.set_input_size(input_size)
    else:
        backbone = OwnNetwork(network, channels=channels, input_size=input_size, inputs=inputs or "images")
    if channels is not None and backbone.channels != channels:
        raise ValueError(
            f"backbone {_describe(name)} has {counted(backbone.channels, 'input channel')}, but the data has {channels}"
        )
    if pretrained is not False and pretrained is not None:
        weights = _weights.get(name) if isinstance(name, str) else None
        if pretrained is not True:
            path = Path(str(pretrained))
        elif weights is not None:
            path = find_weights(weights)
        else:
            raise ValueError(f"backbone {_describe(name)} has no public weights: set pretrained to False or a path")
        load_tensors(backbone, select_backbone(read_tensors(path)), weights, origin=path.name)
    return backbone


def _construct(name: str, channels: int | None) -> nn.Module:
    """Build the backbone that is registered as `name`. If it is MODULE:FUNCTION, import and register it first."""
    if is_own_code(name) and name not in BACKBONES.names():
        register(name, load_constructor(name))
    options: dict[str, Any] = {} if channels is None else {"channels": check_count("channels", channels)}
    if not is_built_in(name) and "channels" not in BACKBONES.options(name):
        options = {}
    network = BACKBONES.create(name, **options)
    if not isinstance(network, nn.Module):
        raise ValueError(f"backbone {name!r} must return an nn.Module, got {type(network).__name__}")
    return network


def _describe(name: str | nn.Module) -> str:
    return repr(name) if isinstance(name, str) else type(name).__name__
