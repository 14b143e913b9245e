"""Your own network as a backbone: any `nn.Module`, or MODULE:FUNCTION for a function that returns one."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone
from nearfar.validation import check_choice, check_count

DEFAULT_SIZE = 224
LIBRARIES = ("transformers:", "transformers-text:", "timm:", "all-minilm-l6-v2")
_trusted: set[str] = set()  # modules whose code the user asked to run


class OwnNetwork(Backbone):
    """Any `nn.Module` as a backbone. A forward pass with zeros determines the shape of its output.

    The module maps images [B, channels, H, W] or vectors [B, channels] to vectors [B, features] or to feature maps
    [B, features, h, w]. The output may also be an object from the transformers library. Its `pooler_output` is used or,
    if there is none, the first token of its `last_hidden_state`. If the module is an `nn.Sequential`, its children are
    the blocks that `train_from` and `layer_decay` refer to.

    Args:
        network: The module. Its attributes `input_size`, `channels`, `mean`, `std` and `transform` are used if it has
            them. For transformers models, `config.image_size` and `config.num_channels` are used. `transform` is a
            function that maps a Pillow image to the input of the network. It replaces all other image preprocessing.
        channels: Number of image channels, or number of dimensions of the vectors. An attribute `channels` of the
            network takes precedence. The default is the input width of the first convolution or linear layer.
        input_size: Side of the images in pixels. The default is the attribute of the network, or 224.
        inputs: "images" or "vectors".

    >>> OwnNetwork(nn.Linear(8, 4), inputs="vectors").features
    4
    """

    def __init__(
        self, network: nn.Module, *, channels: int | None = None, input_size: int | None = None, inputs: str = "images"
    ) -> None:
        check_choice("inputs", inputs, ("images", "vectors"))
        are_images = inputs == "images"
        settings = getattr(network, "config", None)
        width = getattr(network, "channels", None) or getattr(settings, "num_channels", None)
        width = width or _first_width(network, are_images) or (3 if are_images else None)
        if not isinstance(getattr(network, "channels", None), int) and channels is not None:
            width = channels
        if width is None:
            raise ValueError("channels is missing: pass the dimension of the vectors, or set network.channels")
        size = input_size or getattr(network, "input_size", None) or getattr(settings, "image_size", None)
        if size is not None and not isinstance(size, int):
            raise ValueError(f"input_size must be the side of square images in pixels, got {size!r}")
        super().__init__(
            features=1,
            channels=check_count("channels", int(width)),
            input_size=check_count("input_size", size or DEFAULT_SIZE) if are_images else 1,
            mean=tuple(getattr(network, "mean", IMAGENET_MEAN)),
            std=tuple(getattr(network, "std", IMAGENET_STD)),
        )
        if not are_images:
            self.mean, self.std = (), ()
        self.has_image_input = are_images
        self.transform: Callable[..., Tensor] | None = getattr(network, "transform", None)
        self.network = network
        shape = self._probe().shape
        self.features, self.has_map_output = int(shape[1]), len(shape) == 4

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the children of an `nn.Sequential`, or an empty list for other networks."""
        return list(self.network.named_children()) if type(self.network) is nn.Sequential else []

    def forward(self, x: Tensor) -> Tensor:
        return _as_tensor(self.network(x))

    @torch.no_grad()
    def _probe(self) -> Tensor:
        side = (self.input_size, self.input_size) if self.has_image_input else ()
        parameter = next(self.network.parameters(), None)
        options: dict[str, Any] = {} if parameter is None else {"device": parameter.device, "dtype": parameter.dtype}
        x = torch.zeros(2, self.channels, *side, **options)
        name, is_training = type(self.network).__name__, self.network.training
        self.network.eval()  # so that batch norms do not change their statistics
        try:
            y = self.forward(x)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"the network {name} cannot be applied to an input of shape {list(x.shape)} ({reason}): pass the right "
                "channels and input_size, or set them as attributes of the network"
            ) from error
        finally:
            self.network.train(is_training)
        if y.ndim not in (2, 4) or len(y) != len(x):
            raise ValueError(
                f"the output of the network {name} must have shape [B, features] or [B, features, h, w], got "
                f"{list(y.shape)} for an input of shape {list(x.shape)}"
            )
        return y


def _as_tensor(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    pooled = getattr(output, "pooler_output", None)
    if pooled is None:
        hidden = getattr(output, "last_hidden_state", None)
        pooled = None if hidden is None else hidden[:, 0]
    if not isinstance(pooled, Tensor):
        raise ValueError(f"the network must return a tensor, got {type(output).__name__}")
    return pooled.flatten(1)


def _first_width(network: nn.Module, are_images: bool) -> int | None:
    """Return the input width of the first convolution or, for vectors, of the first linear layer."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and are_images:
            return layer.in_channels
        if isinstance(layer, nn.Linear) and not are_images:
            return layer.in_features
    return None


def describe_origin(network: nn.Module) -> str:
    """Return MODULE:CLASS of a network, the name under which a model file refers to it."""
    network = network.network if isinstance(network, OwnNetwork) else network
    return f"{type(network).__module__}:{type(network).__qualname__}"


def is_own_code(name: str) -> bool:
    """Return whether a name has the form MODULE:FUNCTION and does not name a library model like transformers:NAME."""
    return ":" in name and not name.startswith(LIBRARIES)


def trust(module: str) -> None:
    """Import a Python module of the user, and allow model files to refer to its functions and classes.

    The current working directory is searched first.

    Raises:
        ValueError: If the module cannot be imported.
    """
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        importlib.import_module(module)
    except Exception as error:  # the code of the user can raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"the module {module!r} cannot be imported ({type(error).__name__}: {reason})") from error
    _trusted.add(module)


def is_trusted(name: str) -> bool:
    """Return whether the user asked to run the module of MODULE:FUNCTION, so that a model file may refer to it."""
    return name.partition(":")[0] in _trusted


def load_constructor(name: str) -> Callable[..., nn.Module]:
    """Import MODULE:FUNCTION and return the function or class. This runs the code of the module.

    Raises:
        ValueError: If there is no such module or function.
    """
    module, _, attribute = name.partition(":")
    trust(module)
    found: Any = sys.modules[module]
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"the module {module!r} has no function or class {attribute!r}: check {name!r}")
    constructor: Callable[..., nn.Module] = found
    return constructor
