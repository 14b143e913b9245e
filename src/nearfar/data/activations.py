"""A dataset of cached activations: outputs of the frozen part of a network for each image."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nearfar.data.row_store import RowStore


class ActivationDataset:
    """Dataset of cached activations, which the trained part of the network takes as input instead of images.

    A view is one version of every image. There are several randomly augmented views, and one view for evaluation.

    Args:
        labels: Class of each image [N].
        open_view: Function that takes the number of an augmented view (counted from 0) and returns the `RowStore` with
            its activations. If it is called with None, it returns the `RowStore` of the view for evaluation.
        views: Number of augmented views. Epoch e uses view e % views.
    """

    def __init__(self, labels: Tensor, open_view: Callable[[int | None], RowStore], *, views: int) -> None:
        self.labels, self.views = labels, views
        self.skipped: dict[int, str] = {}
        self._open_view = open_view
        self._stores: dict[int | None, RowStore] = {}

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """Return the activations of the rows `indices`, float32 [B, ...].

        With `train`, they come from the augmented view of the epoch, otherwise from the view for evaluation.
        """
        view = epoch % self.views if train else None
        if view not in self._stores:
            self._stores[view] = self._open_view(view)
        return torch.from_numpy(self._stores[view].read(np.asarray(indices)).astype(np.float32, copy=False))
