"""No backbone: the input already is vectors, say of a frozen network, and only the head is trained."""

from __future__ import annotations

from torch import Tensor

from nearfar.models.backbones.base import Backbone


class Features(Backbone):
    """Vectors [B, channels] as they are.

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
