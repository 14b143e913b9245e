"""A dataset of small images that are stored in one array."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nearfar.data.augment import DRAWINGS, BatchAugment
from nearfar.data.manifest import Manifest


class PixelDataset:
    """Small images in memory or in a memory-mapped cache, augmented in batches.

    Args:
        manifest: A manifest of pixels: [N, H, W] for one channel, [N, H, W, 3] for three.
        augment: Augmentation for training. None disables it.
        size: Side of the returned images in pixels. The default is the side of the stored images. Augmentation resizes
            to this size. Without augmentation, a center crop of this size is returned.
        mean, std: One value for each channel, or one value for all channels.
        seed: Seed of the augmentation.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        augment: BatchAugment | None = DRAWINGS,
        size: int | None = None,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        seed: int = 0,
    ) -> None:
        if manifest.pixels is None:
            raise ValueError(f"manifest must contain pixels, got {manifest!r}")
        height, width = manifest.pixels.shape[1:3]
        if size is not None and size > min(height, width):
            raise ValueError(f"size must be at most the size of the images, {height} x {width}, got {size}")
        channels = 1 if manifest.pixels.ndim == 3 else 3
        if len(mean) != len(std) or len(mean) not in (1, channels):
            raise ValueError(f"mean and std need one value per channel ({channels}), got {list(mean)} and {list(std)}")
        self.labels = torch.tensor(manifest.targets)
        self.skipped: dict[int, str] = {}
        self.augment, self.size, self.seed = augment, size, seed
        self._pixels = manifest.pixels
        self._scale = torch.tensor([1 / (255 * s) for s in std])[:, None, None]
        self._offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])[:, None, None]

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """Return the images at the rows `indices`, [B, C, H, W], with values (pixel / 255 - mean) / std."""
        return self.to_input(self.read_pixels(indices), indices, epoch=epoch, train=train)

    def read_pixels(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return the stored images at the rows `indices`, uint8 [B, H, W] or [B, H, W, 3]."""
        with warnings.catch_warnings():
            # torch warns if the array is read-only, but this tensor is never written to
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(self._pixels[np.asarray(indices, dtype=np.int64)])

    def to_input(self, pixels: Tensor, indices: Sequence[int] | Tensor, *, epoch: int, train: bool) -> Tensor:
        """Augment and normalize images that `read_pixels` returned, on the device of `pixels`."""
        rows = np.asarray(indices, dtype=np.int64)
        x = (pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)).float()
        if train and self.augment is not None:
            x = self.augment(x, rows, seed=self.seed, epoch=epoch, size=self.size)
        elif self.size is not None:
            top, left = (x.shape[2] - self.size) // 2, (x.shape[3] - self.size) // 2
            x = x[:, :, top : top + self.size, left : left + self.size]
        scale, offset = (values.to(x.device, non_blocking=True) for values in (self._scale, self._offset))
        return (x * scale).add_(offset)
