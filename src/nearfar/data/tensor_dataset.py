"""Dataset of tensors from a Python dataset, which are passed to the network as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError


class TensorDataset:
    """Tensors of a Python dataset, passed to the network as float32 without any transform.

    Each tensor is read when it is needed.
    """

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
            raise NearfarError(f"all tensors of the dataset must have the same shape, got shapes {sorted(shapes)}")
        return torch.stack(tensors).float()
