"""Base class of all backbones, and functions and layers that several backbones use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from nearfar.errors import NearfarError
from nearfar.models.pooling import create_pooling
from nearfar.validation import check_count

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """Base class of networks that map B images [B, channels, H, W] to feature maps [B, features, h, w].

    A backbone that is a sequence of blocks defines `named_layers`, and its lower blocks can then be frozen. Any other
    backbone defines `forward`.

    Args:
        features: Number of features at each position of the map.
        channels: Number of input channels. Three channels are in RGB order.
        input_size: Side in pixels of the images that the network was designed for.
        mean, std: One value for each channel. The input is (image / 255 - mean) / std.

    Attributes:
        has_image_input: Whether the inputs are images. If False, they are vectors [B, channels] or texts.
        has_text_input: Whether the inputs are texts, as tokens [B, L] padded with -1.
        has_map_output: Whether the outputs are feature maps. If False, they are vectors [B, features].
        pooling: Name of the default pooling of the feature maps.
        definition: Description of the architecture, which `nearfar.models.create` needs besides the name to create the
            same network. None if the name is enough.
    """

    has_map_output = True
    has_image_input = True
    has_text_input = False
    pooling = "average"
    definition: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        features: int,
        channels: int = 3,
        input_size: int = 224,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        self.features, self.channels, self.input_size = features, channels, input_size
        # if `mean` or `std` is for another number of channels, repeat the average of its values
        self.mean = mean if len(mean) == channels else (sum(mean) / len(mean),) * channels
        self.std = std if len(std) == channels else (sum(std) / len(std),) * channels

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers in order, each with the name of its block; consecutive layers may share a block.

        The backbone is the composition of these layers. The list is empty if the backbone is not a sequence of blocks.
        """
        return []

    def set_input_size(self, size: int) -> None:
        """Set the side of the input images in pixels, or the maximum number of tokens of a text."""
        self.input_size = check_count("input_size", size)

    def set_token_dropout(self, rate: float) -> None:
        """Set the probability with which a token is hidden in training mode. Only networks for texts have tokens.

        Raises:
            NearfarError: If the rate is not 0 and the inputs are not texts.
        """
        if rate:
            raise NearfarError(f"model.token_dropout={rate} needs a network for texts: remove model.token_dropout")

    def make_pooling(self, name: str | None = None, *, gem_p: float = 3.0) -> nn.Module:
        """Create the pooling of this name, or the default pooling, for the outputs of this backbone."""
        if self.has_map_output:
            return create_pooling(name or self.pooling, gem_p=gem_p)
        if name is not None:
            raise ValueError(f"the backbone outputs vectors, which are not pooled: remove pooling={name!r}")
        return nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in order."""
        layers = self.named_layers()
        if not layers:
            raise NotImplementedError(f"{type(self).__name__} must define named_layers or forward")
        for _, layer in layers:
            x = layer(x)
        return x


def group_by_block(layers: Iterable[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Give each layer without parameters, such as pooling, the name of the block before it.

    A backbone is then never split between a block and the pooling after it. The activations at the split are those
    after the pooling, which take less memory.

    >>> layers = [("conv", nn.Conv2d(1, 1, 1)), ("pool", nn.MaxPool2d(2)), ("last", nn.Conv2d(1, 1, 1))]
    >>> [name for name, _ in group_by_block(layers)]
    ['conv', 'conv', 'last']
    """
    grouped: list[tuple[str, nn.Module]] = []
    for name, layer in layers:
        has_parameters = next(layer.parameters(), None) is not None
        grouped.append((name if has_parameters or not grouped else grouped[-1][0], layer))
    return grouped


def init_convolutions(module: nn.Module) -> None:
    """Initialize all convolutions of a module by the method of He et al. (arXiv 1502.01852, fan_out), with biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class SamePad(nn.Module):
    """Pad a feature map with zeros like TensorFlow's "SAME" padding.

    If the number of padded rows or columns is odd, the extra one is at the bottom or right. Networks with weights from
    TensorFlow need this padding. It differs from symmetric padding if, for example, the stride is 2 and the side is
    even.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        height, width = (self._total(side) for side in x.shape[-2:])
        return nn.functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))

    def _total(self, side: int) -> int:
        return max((math.ceil(side / self.stride) - 1) * self.stride + self.kernel - side, 0)
