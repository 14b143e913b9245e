"""Base class of backbones and layers that several of them use."""

from __future__ import annotations

import math

from torch import Tensor, nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """Map images [B, channels, H, W] to feature maps [B, features, h, w].

    Args:
        features: Number of features at each position of the map.
        channels: Number of input channels; three channels are RGB.
        input_size: Side in pixels of the images that the network was designed for.
        mean, std: One value for each channel. The input is (image / 255 - mean) / std.

    Attributes:
        has_image_input: False if the input is vectors [B, channels].
        has_map_output: False if the output is vectors [B, features].
        pooling: Name of the default pooling of the maps.
    """

    has_map_output = True
    has_image_input = True
    pooling = "average"

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
        # for another number of channels than that of the public weights, use the average of the channels
        self.mean = mean if len(mean) == channels else (sum(mean) / len(mean),) * channels
        self.std = std if len(std) == channels else (sum(std) / len(std),) * channels


def init_convolutions(module: nn.Module) -> None:
    """Initialize all convolutions of a module as He et al. (arXiv 1502.01852, fan_out) do, with biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class SamePad(nn.Module):
    """Pad a map with zeros as TensorFlow's "SAME": if the number is odd, right and bottom get one more.

    Weights trained in TensorFlow need it. It differs from symmetric padding with stride 2 and an even side.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        height, width = (self._total(side) for side in x.shape[-2:])
        return nn.functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))

    def _total(self, side: int) -> int:
        return max((math.ceil(side / self.stride) - 1) * self.stride + self.kernel - side, 0)
