"""Pooling layers, which reduce each feature map [features, h, w] to a vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.validation import check_choice, check_positive

POOLINGS = ("average", "max", "average+max", "gem", "gem-trainable", "grid")


class AveragePooling(nn.Module):
    """Mean of each channel over all positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))


class MaxPooling(nn.Module):
    """Largest value of each channel over all positions, as in the released code of DRO (arXiv 1912.11194)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax((-2, -1))


class AverageMaxPooling(nn.Module):
    """Sum of average and max pooling.

    The released code of Proxy-Anchor and the "exceptional settings" of Proxy-ISA use it.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1)) + x.amax((-2, -1))


class GeM(nn.Module):
    """Generalized mean (mean x^p)^(1/p) over the positions (Radenovic et al., arXiv 1711.02512, Eq. 3).

    Values of x below eps are replaced by eps. For feature maps without negative values, p = 1 gives the average, and
    the result approaches the maximum as p grows.

    Args:
        p: The exponent. MPA uses a fixed p=3.
        trainable: If True, p is a trainable parameter that all channels share.
        eps: Lower bound for the values of x.

    >>> GeM(p=2.0)(torch.tensor([[[[1.0, 7.0]]]]))
    tensor([[5.]])
    """

    def __init__(self, p: float = 3.0, *, trainable: bool = False, eps: float = 1e-6) -> None:
        super().__init__()
        self.trainable, self.eps = trainable, check_positive("eps", eps)
        self.p: float | nn.Parameter = check_positive("gem_p", p)
        if trainable:
            self.p = nn.Parameter(torch.tensor(float(p)))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.clamp_min(self.eps) if x.dtype == torch.float64 else x.float().clamp_min(self.eps)
        # Dividing by the maximum prevents overflow. It cancels out below, so it needs no gradient.
        largest = wide.detach().amax((-2, -1), keepdim=True)
        mean = (wide / largest).pow(self.p).mean((-2, -1)).pow(1 / self.p)
        return (mean * largest[..., 0, 0]).to(x.dtype)

    def extra_repr(self) -> str:
        return f"p={float(self.p):g}, trainable={self.trainable}"


class Grid(nn.Module):
    """Divide the feature map into side x side cells, and concatenate the means of the cells (our own method).

    This keeps information about positions. It is suitable for drawings and other objects of similar size and position.
    It multiplies the number of features by the number of cells.

    >>> Grid(2)(torch.arange(16.0).reshape(1, 1, 4, 4))
    tensor([[ 2.5000,  4.5000, 10.5000, 12.5000]])
    """

    def __init__(self, side: int = 4) -> None:
        super().__init__()
        self.side, self.cells = side, side * side

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(x, self.side).flatten(1)

    def extra_repr(self) -> str:
        return f"side={self.side}"


def create_pooling(name: str, *, gem_p: float = 3.0) -> nn.Module:
    """Create the pooling `name`, one of `POOLINGS`. `gem_p` is the p of "gem" or the initial p of "gem-trainable"."""
    check_choice("pooling", name, POOLINGS)
    if name.startswith("gem"):
        return GeM(gem_p, trainable=name == "gem-trainable")
    simple: dict[str, type[nn.Module]] = {
        "average": AveragePooling,
        "max": MaxPooling,
        "average+max": AverageMaxPooling,
        "grid": Grid,
    }
    return simple[name]()
