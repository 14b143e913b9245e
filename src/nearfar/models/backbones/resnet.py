"""ResNet-18 and ResNet-50. The tensor names are those of torchvision's weight files, whose classifier is left out."""

from __future__ import annotations

from torch import Tensor, nn

from nearfar.models.backbones import register
from nearfar.models.backbones.base import Backbone, init_convolutions
from nearfar.models.backbones.conv_norm import ConvNorm, conv_norm
from nearfar.models.weights import WeightFile, drop_prefixes


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al., arXiv 1512.03385, Fig. 5 left)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(conv_norm(self.conv1, self.bn1, x))
        y = conv_norm(self.conv2, self.bn2, y)
        out: Tensor = self.relu(y + self.downsample(x))
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut (He et al., arXiv 1512.03385, Fig. 5 right).

    The stride is in the 3x3 convolution, as in torchvision.
    """

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(conv_norm(self.conv1, self.bn1, x))
        y = self.relu(conv_norm(self.conv2, self.bn2, y))
        y = conv_norm(self.conv3, self.bn3, y)
        out: Tensor = self.relu(y + self.downsample(x))
        return out


def shortcut(inputs: int, outputs: int, stride: int) -> ConvNorm:
    """Return the identity if the shape does not change, otherwise a 1x1 convolution with batch norm."""
    if inputs == outputs and stride == 1:
        return ConvNorm()
    return ConvNorm(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Backbone):
    """Deep residual network without its classifier (He et al., CVPR 2016, arXiv 1512.03385, Table 1)."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...], channels: int = 3) -> None:
        super().__init__(features=512 * block.expansion, channels=channels)
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for i, depth in enumerate(depths):
            width, blocks = 64 * 2**i, []
            for j in range(depth):
                blocks.append(block(inputs, width, 2 if i > 0 and j == 0 else 1))
                inputs = width * block.expansion
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        init_convolutions(self)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers: "stem", then the residual blocks "layer1.0", "layer1.1", ..."""
        layers: list[tuple[str, nn.Module]] = []
        for name, child in self.named_children():
            if isinstance(child, nn.Sequential):
                layers += [(f"{name}.{i}", block) for i, block in child.named_children()]
            else:
                layers.append(("stem", child))
        return layers


RESNET18_WEIGHTS = WeightFile(
    files=("resnet18-f37072fd.pth", "resnet18-5c106cde.pth"),
    source="https://download.pytorch.org/models/resnet18-f37072fd.pth (torchvision, IMAGENET1K_V1)",
    rename=drop_prefixes("fc."),
)
RESNET50_WEIGHTS = WeightFile(
    files=("resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth", "resnet50-19c8e357.pth"),
    source="https://download.pytorch.org/models/resnet50-0676ba61.pth (torchvision, IMAGENET1K_V1)",
    rename=drop_prefixes("fc."),
)


@register("resnet18", weights=RESNET18_WEIGHTS)
def resnet18(*, channels: int = 3) -> ResNet:
    """Create ResNet-18: 11,176,512 parameters, 512 features."""
    return ResNet(BasicBlock, (2, 2, 2, 2), channels)


@register("resnet50", weights=RESNET50_WEIGHTS)
def resnet50(*, channels: int = 3) -> ResNet:
    """Create ResNet-50: 23,508,032 parameters, 2048 features."""
    return ResNet(Bottleneck, (3, 4, 6, 3), channels)
