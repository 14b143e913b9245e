"""Center the embeddings of a trained network: subtract the mean of the training set.

The embeddings of pretrained text networks have a mean far from 0, so all of them share a direction that says nothing
about their class. This increases all cosines by different amounts. Without this direction, the cosines depend more on
what distinguishes the samples.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.ops.geometry import unit
from nearfar.validation import check_embeddings


class Center(nn.Module):
    """Map y to y / |y| - m in evaluation mode, and to y in training mode.

    The mean m is 0 until `fit` sets it, so the cosines of embeddings do not change before.

    Args:
        dim: Number of dimensions of the embeddings.

    >>> center = Center(2).eval()
    >>> center.fit(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
    >>> center(torch.tensor([[3.0, 0.0]]))
    tensor([[ 0.5000, -0.5000]])
    """

    mean: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))

    def forward(self, y: Tensor) -> Tensor:
        return y if self.training else unit(y) - self.mean

    @torch.no_grad()
    def fit(self, embeddings: Tensor) -> None:
        """Set m to the mean of normalized embeddings.

        Args:
            embeddings: Embeddings [N, dim] before they are centered. They need not be normalized.
        """
        check_embeddings("embeddings", embeddings, dim=len(self.mean))
        self.mean.copy_(unit(embeddings.double()).mean(0))
