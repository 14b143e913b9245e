"""Identity backbone for feature vectors, for example from a frozen network. Only the head is trained."""

from __future__ import annotations

from torch import Tensor

from nearfar.models.backbones import register
from nearfar.models.backbones.base import Backbone


@register("features")
class Features(Backbone):
    """Return vectors [B, channels] unchanged.

    >>> import torch
    >>> Features(channels=3)(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """

    has_map_output = False
    has_image_input = False

    def __init__(self, *, channels: int) -> None:
        super().__init__(features=channels, channels=channels, input_size=1)
        self.mean, self.std = (), ()

    def forward(self, x: Tensor) -> Tensor:
        return x
