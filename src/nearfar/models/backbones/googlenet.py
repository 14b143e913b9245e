"""GoogLeNet (Inception v1), the backbone in the PROFS paper.

There are two variants: the published network without batch norm, and torchvision's network with batch norm.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from nearfar.models.backbones import register
from nearfar.models.backbones.base import Backbone, group_by_block, init_convolutions
from nearfar.models.backbones.conv_norm import conv_norm
from nearfar.models.weights import Tensors, WeightFile

# output channels of each convolution in a block: (1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection)
BLOCKS: dict[str, tuple[int, int, int, int, int, int]] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


_CAFFE = {
    "conv1.7x7_s2": "conv1",
    "conv2.3x3_reduce": "conv2_reduce",
    "conv2.3x3": "conv2",
    "1x1": "one",
    "3x3_reduce": "three_reduce",
    "3x3": "three",
    "5x5_reduce": "five_reduce",
    "5x5": "five",
    "pool_proj": "project",
}
_TORCHVISION = {
    "conv1": "conv1",
    "conv2": "conv2_reduce",
    "conv3": "conv2",
    "branch1": "one",
    "branch2.0": "three_reduce",
    "branch2.1": "three",
    "branch3.0": "five_reduce",
    "branch3.1": "five",
    "branch4.1": "project",
}


def rename_caffe(name: str) -> str | None:
    """Return the nearfar name of a tensor of bvlc_googlenet, or None if nearfar does not use the tensor.

    Some converted files have "." or "_" instead of the "/" in Caffe's names.

    >>> rename_caffe("inception_4e/3x3_reduce.bias"), rename_caffe("loss3/classifier.weight")
    ('inception_4e.three_reduce.conv.bias', None)
    """
    if name.startswith(("loss", "fc", "last_linear", "classifier")):
        return None
    layer, _, tensor = name.rpartition(".")
    parts = re.fullmatch(r"(inception_\d[a-e]|conv\d)[/._](\w+)", layer)
    if parts is None:
        return name
    key = f"{parts[1]}.{parts[2]}" if parts[1].startswith("conv") else parts[2]
    block = "" if parts[1].startswith("conv") else f"{parts[1]}."
    return f"{block}{_CAFFE[key]}.conv.{tensor}" if key in _CAFFE else name


def rename_torchvision(name: str) -> str | None:
    """Return the nearfar name of a tensor of torchvision's googlenet, or None if nearfar does not use the tensor.

    >>> rename_torchvision("inception3a.branch2.0.bn.weight"), rename_torchvision("aux1.fc1.bias")
    ('inception_3a.three_reduce.bn.weight', None)
    """
    if name.startswith(("aux", "fc.")):
        return None
    parts = re.fullmatch(r"(?:inception(\d[a-e])\.)?(.+)\.(conv|bn)\.(\w+)", name)
    if parts is None or parts[2] not in _TORCHVISION:
        return name
    block = f"inception_{parts[1]}." if parts[1] else ""
    return f"{block}{_TORCHVISION[parts[2]]}.{parts[3]}.{parts[4]}"


def to_rgb(tensors: Tensors) -> Tensors:
    """Reverse the input channels of the first convolution from BGR to RGB."""
    first = tensors.get("conv1.conv.weight")
    return tensors if first is None else {**tensors, "conv1.conv.weight": first.flip(1)}


GOOGLENET_WEIGHTS = WeightFile(
    files=("bvlc_googlenet.pth", "bvlc_googlenet.safetensors"),
    source="the Caffe model zoo's bvlc_googlenet, converted to a state dict with Caffe's layer names",
    rename=rename_caffe,
    change=to_rgb,
)
GOOGLENET_BN_WEIGHTS = WeightFile(
    files=("googlenet-1378be20.pth",),
    source="https://download.pytorch.org/models/googlenet-1378be20.pth (torchvision, IMAGENET1K_V1)",
    rename=rename_torchvision,
)


class Conv(nn.Module):
    """Convolution and ReLU. With `batch_norm`, the convolution has no bias and a batch norm follows it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, batch_norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=not batch_norm)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001) if batch_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(conv_norm(self.conv, self.bn, x))


class GoogLeNetBlock(nn.Module):
    """Inception block with four concatenated branches (Szegedy et al., Fig. 2b)."""

    def __init__(self, inputs: int, widths: tuple[int, int, int, int, int, int], *, batch_norm: bool) -> None:
        super().__init__()
        one, three_reduce, three, five_reduce, five, project = widths
        self.one = Conv(inputs, one, 1, batch_norm=batch_norm)
        self.three_reduce = Conv(inputs, three_reduce, 1, batch_norm=batch_norm)
        self.three = Conv(three_reduce, three, 3, batch_norm=batch_norm)
        self.five_reduce = Conv(inputs, five_reduce, 1, batch_norm=batch_norm)
        # torchvision's network and weights have a 3x3 convolution here
        self.five = Conv(five_reduce, five, 3 if batch_norm else 5, batch_norm=batch_norm)
        self.pool = nn.MaxPool2d(3, 1, 1, ceil_mode=True)
        self.project = Conv(inputs, project, 1, batch_norm=batch_norm)
        self.outputs = one + three + five + project

    def forward(self, x: Tensor) -> Tensor:
        three = self.three(self.three_reduce(x))
        five = self.five(self.five_reduce(x))
        return torch.cat([self.one(x), three, five, self.project(self.pool(x))], 1)


@register("googlenet", weights=GOOGLENET_WEIGHTS)
class GoogLeNet(Backbone):
    """GoogLeNet without its classifiers (Szegedy et al., CVPR 2015, arXiv 1409.4842, Table 1), with 1024 features.

    Without `batch_norm`, this is the published network (Caffe's bvlc_googlenet) with local response normalization and
    5,973,552 parameters. The Caffe model expects BGR images with values 0..255. Here the input is RGB: the input
    channels of the first convolution are reversed when the weights are loaded, and `mean` and `std` account for the
    range.

    With `batch_norm`, this is torchvision's network with 5,599,904 parameters. It has 3x3 instead of 5x5 convolutions.
    """

    def __init__(self, *, channels: int = 3, batch_norm: bool = False) -> None:
        mean: tuple[float, ...] = (0.5,) * 3 if batch_norm else tuple(value / 255 for value in (123, 117, 104))
        std = (0.5,) * 3 if batch_norm else (1 / 255,) * 3
        super().__init__(features=1024, channels=channels, mean=mean, std=std)
        self.conv1 = Conv(channels, 64, 7, 2, batch_norm=batch_norm)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.norm1 = nn.Identity() if batch_norm else ResponseNorm()
        self.conv2_reduce = Conv(64, 64, 1, batch_norm=batch_norm)
        self.conv2 = Conv(64, 192, 3, batch_norm=batch_norm)
        self.norm2 = nn.Identity() if batch_norm else ResponseNorm()
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        inputs = 192
        for name, widths in BLOCKS.items():
            if name in ("4a", "5a"):
                size = 2 if batch_norm and name == "5a" else 3
                self.add_module(f"pool{int(name[0]) - 1}", nn.MaxPool2d(size, 2, ceil_mode=True))
            block = GoogLeNetBlock(inputs, widths, batch_norm=batch_norm)
            self.add_module(f"inception_{name}", block)
            inputs = block.outputs
        init_convolutions(self)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers: convolutions and inception blocks, each with the pooling after it."""
        return group_by_block(self.named_children())


class ResponseNorm(nn.LocalResponseNorm):
    """Local response normalization over 5 channels with Caffe's constants.

    Half-precision inputs are converted to float32, and the result is converted back.
    """

    def __init__(self) -> None:
        super().__init__(5, alpha=1e-4, beta=0.75)

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return super().forward(wide).to(x.dtype)


@register("googlenet-bn", weights=GOOGLENET_BN_WEIGHTS)
def googlenet_bn(*, channels: int = 3) -> GoogLeNet:
    """Create GoogLeNet with batch norm, as in torchvision."""
    return GoogLeNet(channels=channels, batch_norm=True)
