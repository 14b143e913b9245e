"""BN-Inception, the backbone in the papers on DRO, MPA, Proxy-Anchor and Proxy-ISA, and in Musgrave et al. (2020)."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from nearfar.models.backbones import register
from nearfar.models.backbones.base import Backbone, group_by_block, init_convolutions
from nearfar.models.backbones.conv_norm import conv_norm
from nearfar.models.weights import Tensors, WeightFile

# output channels of each convolution in a block, 0 if the block does not have it:
# (1x1, 3x3 reduce, 3x3, double 3x3 reduce, double 3x3, pool projection)
BLOCKS: dict[str, tuple[int, int, int, int, int, int]] = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}


_LAYERS = {
    "conv1_7x7_s2": "conv1",
    "conv2_3x3_reduce": "conv2_reduce",
    "conv2_3x3": "conv2",
    "1x1": "one",
    "3x3_reduce": "three_reduce",
    "3x3": "three",
    "double_3x3_reduce": "double_reduce",
    "double_3x3_1": "double_1",
    "double_3x3_2": "double_2",
    "pool_proj": "project",
}


def rename(name: str) -> str | None:
    """Return the nearfar name of a tensor of the converted Caffe model, or None if nearfar does not use the tensor.

    >>> rename("inception_3a_double_3x3_1_bn.running_mean"), rename("last_linear.weight")
    ('inception_3a.double_1.bn.running_mean', None)
    """
    if name.startswith(("last_linear.", "fc.", "classifier.", "model.embedding.", "embedding.")):
        return None
    layer, _, tensor = name.removeprefix("model.").rpartition(".")
    kind = "bn" if layer.endswith("_bn") else "conv"
    parts = re.fullmatch(r"(?:(inception_\d[a-e])_)?(.+?)(?:_bn)?", layer)
    if parts is None or parts[2] not in _LAYERS:
        return name
    block = f"{parts[1]}." if parts[1] else ""
    return f"{block}{_LAYERS[parts[2]]}.{kind}.{tensor}"


def to_rgb(tensors: Tensors) -> Tensors:
    """Reverse the input channels of the first convolution from BGR to RGB, and reshape tensors [1, C] to [C].

    Some weight files store vectors as [1, C].
    """
    flat = {name: x[0] if x.ndim == 2 and len(x) == 1 else x for name, x in tensors.items()}
    first = flat.get("conv1.conv.weight")
    return flat if first is None else {**flat, "conv1.conv.weight": first.flip(1)}


BN_INCEPTION_WEIGHTS = WeightFile(
    files=("bn_inception-52deb4733.pth", "bn_inception-239d2248.pth", "bn_inception-9f5701afb96c8044.pth"),
    source="http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth (converted from Caffe)",
    rename=rename,
    change=to_rgb,
)


class ConvBN(nn.Module):
    """Convolution, batch norm and ReLU. The convolution has a bias, because the weight files have one."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(conv_norm(self.conv, self.bn, x))


class BNInceptionBlock(nn.Module):
    """Inception block (Ioffe and Szegedy, Fig. 5): four concatenated branches.

    A block with stride 2 has three branches: it has no 1x1 branch, and its pooling has no projection.
    """

    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int], *, pool: str = "average") -> None:
        super().__init__()
        one, three_reduce, three, double_reduce, double, project = widths
        stride = 1 if one else 2
        if one:
            self.one = ConvBN(inputs, one)
            self.project = ConvBN(inputs, project)
        self.three_reduce = ConvBN(inputs, three_reduce)
        self.three = ConvBN(three_reduce, three, 3, stride)
        self.double_reduce = ConvBN(inputs, double_reduce)
        self.double_1 = ConvBN(double_reduce, double, 3)
        self.double_2 = ConvBN(double, double, 3, stride)
        if stride == 2:
            self.pool: nn.Module = nn.MaxPool2d(3, 2, ceil_mode=True)
        else:
            self.pool = nn.AvgPool2d(3, 1, 1) if pool == "average" else nn.MaxPool2d(3, 1, 1)
        self.stride, self.outputs = stride, one + three + double + (project or inputs)

    def forward(self, x: Tensor) -> Tensor:
        three = self.three(self.three_reduce(x))
        double = self.double_2(self.double_1(self.double_reduce(x)))
        if self.stride == 2:
            return torch.cat([three, double, self.pool(x)], 1)
        return torch.cat([self.one(x), three, double, self.project(self.pool(x))], 1)


@register("bn-inception", weights=BN_INCEPTION_WEIGHTS)
class BNInception(Backbone):
    """Inception with batch normalization, without its classifier (Ioffe and Szegedy, ICML 2015, arXiv 1502.03167).

    The network has 10,270,240 parameters and 1024 features. The architecture is that of the Caffe model whose converted
    weights are commonly used. That model expects BGR images with values 0..255. Here the input is RGB: the input
    channels of the first convolution are reversed when the weights are loaded, and `mean` and `std` account for the
    range. Batch norms use PyTorch's default momentum 0.1 (our choice); the converted model uses 0.9.
    """

    def __init__(self, *, channels: int = 3) -> None:
        mean, std = tuple(value / 255 for value in (128, 117, 104)), (1 / 255,) * 3
        super().__init__(features=1024, channels=channels, mean=mean, std=std)
        self.conv1 = ConvBN(channels, 64, 7, 2)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2_reduce = ConvBN(64, 64)
        self.conv2 = ConvBN(64, 192, 3)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        inputs = 192
        for name, widths in BLOCKS.items():
            block = BNInceptionBlock(inputs, widths, pool="max" if name == "5b" else "average")
            self.add_module(f"inception_{name}", block)
            inputs = block.outputs
        init_convolutions(self)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers: convolutions and inception blocks, each with the pooling after it."""
        return group_by_block(self.named_children())
