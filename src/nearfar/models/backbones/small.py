"""Small networks for images of 28 to 64 pixels, trained from scratch on a CPU."""

from __future__ import annotations

from torch import Tensor, nn

from nearfar.models.backbones import register
from nearfar.models.backbones.base import Backbone, init_convolutions

# Mean and std of the built-in drawings (white on black). Other images can use the same values, because a batch norm
# follows the first convolution.
MEAN, STD = (0.15,), (0.31,)
LAYERS_PER_CONV = 4  # convolution, batch norm, ReLU, pooling


@register("small-conv")
class SmallConv(Backbone):
    """Baseline: three 3x3 convolutions with batch norm, ReLU and 2x2 max pooling.

    With the default `width`, they have 32, 64 and 128 output channels.
    """

    pooling = "grid"

    def __init__(self, *, channels: int = 1, width: int = 32) -> None:
        super().__init__(features=4 * width, channels=channels, input_size=28, mean=MEAN, std=STD)
        parts: list[nn.Module] = []
        for inputs, outputs in ((channels, width), (width, 2 * width), (2 * width, 4 * width)):
            parts += [*conv_bn(inputs, outputs), nn.ReLU(inplace=True), nn.MaxPool2d(2, ceil_mode=True)]
        self.layers = nn.Sequential(*parts)
        init_convolutions(self)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers of the blocks "conv1", "conv2" and "conv3"."""
        return [(f"conv{i // LAYERS_PER_CONV + 1}", layer) for i, layer in enumerate(self.layers)]


class SmallResNetBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut.

    If the stride is 2, the shortcut begins with 2x2 average pooling (ResNet-D, He et al., arXiv 1812.01187).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *conv_bn(inputs, outputs, stride=stride), nn.ReLU(inplace=True), *conv_bn(outputs, outputs)
        )
        shortcut: list[nn.Module] = [nn.AvgPool2d(2, ceil_mode=True)] if stride == 2 else []
        if inputs != outputs or stride == 2:
            shortcut += conv_bn(inputs, outputs, kernel=1)
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x) + self.shortcut(x)
        return y.relu_()


@register("small")
class SmallResNet(Backbone):
    """Residual network for drawings and other small images.

    Args:
        channels: Number of input channels.
        widths: Output channels of each stage.
        blocks: Number of residual blocks in each stage.
    """

    pooling = "grid"

    def __init__(
        self, *, channels: int = 1, widths: tuple[int, ...] = (24, 48, 96), blocks: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        super().__init__(features=widths[-1], channels=channels, input_size=28, mean=MEAN, std=STD)
        parts: list[nn.Module] = [*conv_bn(channels, widths[0], kernel=5, stride=2), nn.ReLU(inplace=True)]
        inputs = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            for i in range(count):
                parts.append(SmallResNetBlock(inputs, width, 2 if stage > 0 and i == 0 else 1))
                inputs = width
        self.layers = nn.Sequential(*parts)
        init_convolutions(self)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers: three in the block "stem", then one residual block each in "block1", "block2", ..."""
        stem = sum(not isinstance(layer, SmallResNetBlock) for layer in self.layers)
        return [(f"block{i - stem + 1}" if i >= stem else "stem", layer) for i, layer in enumerate(self.layers)]


def conv_bn(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    """Return a convolution and a batch norm."""
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]
