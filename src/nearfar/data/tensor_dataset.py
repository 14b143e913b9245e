"""Dataset of tensors that a Python dataset computes, which are inputs of the network already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError


class TensorDataset:
    """Samples of a Python dataset that are inputs of the network already. They are read when they are needed."""

    def __init__(self, manifest: Manifest) -> None:
        if manifest.items is None or manifest.items.are_images:
            raise ValueError(f"manifest must contain tensors, got {manifest!r}")
        self.labels = torch.tensor(manifest.targets)
        self.skipped: dict[int, str] = {}
        self._items = manifest.items

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """Return the tensors at the rows `indices`, [B, ...]."""
        tensors = [torch.as_tensor(self._items[row]) for row in [int(row) for row in indices]]
        if len(shapes := {tuple(tensor.shape) for tensor in tensors}) > 1:
            raise NearfarError(f"the tensors of the dataset must have one shape, got {sorted(shapes)}")
        return torch.stack(tensors).float()
