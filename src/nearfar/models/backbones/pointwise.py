"""1x1 convolutions of small batches, computed by oneDNN on one CPU thread."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# With one thread, PyTorch computes 1x1 convolutions of smaller batches without oneDNN
# (ConvParams::use_mkldnn in ATen/native/Convolution.cpp).
ONEDNN_BATCH = 16


def conv(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the convolution of a layer with the given weights.

    The result is that of the layer. On one CPU thread, PyTorch computes 1x1 convolutions of fewer than 16 images
    without oneDNN, which takes twice the time on a CPU whose AVX-512 instructions oneDNN uses and MKL does not. A 1x1
    convolution treats each pixel separately, so the rows of an image can also be images of their own. With the
    channels-last layout, this only changes the shape, and it gives oneDNN a batch of at least 16.
    """
    y: Tensor
    rows = _rows_per_image(layer, x)
    if rows == 1:
        y = layer._conv_forward(x, weight, bias)
        return y
    n, channels, height, width = x.shape
    parts = x.permute(0, 2, 3, 1).reshape(n * rows, height // rows, width, channels).permute(0, 3, 1, 2)
    y = layer._conv_forward(parts, weight, bias)
    return y.permute(0, 2, 3, 1).reshape(n, height, width, -1).permute(0, 3, 1, 2)


def _rows_per_image(layer: nn.Conv2d, x: Tensor) -> int:
    """Return the number of parts of equal height into which each image is split, or 1 if PyTorch uses oneDNN anyway.

    torch.compile chooses the kernels itself, so it gets the plain convolution.
    """
    if (
        torch.compiler.is_compiling()
        or x.device.type != "cpu"
        or x.dtype != torch.float32
        or len(x) >= ONEDNN_BATCH
        or torch.get_num_threads() > 1
        or layer.kernel_size != (1, 1)
        or layer.stride != (1, 1)
        or layer.padding != (0, 0)
        or layer.groups != 1
        or not x.is_contiguous(memory_format=torch.channels_last)
    ):
        return 1
    height = x.shape[2]
    enough = (rows for rows in range(1, height + 1) if height % rows == 0 and rows * len(x) >= ONEDNN_BATCH)
    return next(enough, height)
