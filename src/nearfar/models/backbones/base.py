"""What every backbone is: a module that turns pictures into feature maps (or vectors), and says what it expects."""

from __future__ import annotations

import math

from torch import Tensor, nn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """Pictures [B, channels, H, W] to a feature map [B, features, h, w], or, where `maps` is False, to [B, features].

    Where `pictures` is False the input is vectors [B, channels]. `features`: how many numbers a position has;
    `channels`: of the input, RGB where 3; `input_size`: the side in pixels that it was made for; `mean`, `std`: one for
    each channel, the input is (picture / 255 - mean) / std; `pooling`: what suits its maps.
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
        # another number of channels than the weights' has no mean of its own: the average of theirs
        self.mean = mean if len(mean) == channels else (sum(mean) / len(mean),) * channels
        self.std = std if len(std) == channels else (sum(std) / len(std),) * channels


def init_convolutions(module: nn.Module) -> None:
    """He et al.'s start (arXiv 1502.01852, fan_out) for every convolution inside; biases 0, batch norms 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class SamePad(nn.Module):
    """Zeros around a map as TensorFlow's "SAME" adds them: one more to the right and below where the sum is odd.

    Weights that were trained in TensorFlow expect it. With stride 2 and an even side it differs from symmetric padding.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        height, width = (self._total(side) for side in x.shape[-2:])
        return nn.functional.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))

    def _total(self, side: int) -> int:
        return max((math.ceil(side / self.stride) - 1) * self.stride + self.kernel - side, 0)
