"""Augmentation of a whole batch: a random affine map for each image, applied by one call to grid_sample.

Each random parameter is a hash of (seed, epoch, index of the sample, number of the parameter). It therefore does not
depend on the batch, and all samples are computed at once without a Python loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]


def uniform(seed: int, epoch: int, indices: ArrayLike, count: int) -> Floats:
    """Return `count` random numbers in [0, 1) for each index, as an array [len(indices), count].

    They are SplitMix64 hashes (Steele, Lea and Flood, 2014) and depend only on (seed, epoch, index).

    >>> a = uniform(1, 2, [5, 9], 3)
    >>> bool((a[1] == uniform(1, 2, [9], 3)[0]).all()), a.shape
    (True, (2, 3))
    """
    key = np.asarray(indices, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for word in (seed, epoch):
            key = _mix(key ^ _mix(np.array([word & (2**64 - 1)], dtype=np.uint64)))
        counter = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits = _mix(key[:, None] + counter)
    # keep the upper 53 bits, which float64 represents exactly
    values: Floats = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return values


def _mix(z: Hashes) -> Hashes:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = z ^ (z >> np.uint64(31))
    return mixed


@dataclass(frozen=True)
class BatchAugment:
    """Random affine maps and color changes for a batch of images. The default arguments leave images unchanged.

    The interpolation is bilinear without a low-pass filter. Shrinking by a factor of more than about 1.5 causes
    aliasing, so cached images should not be much larger than the training size.

    Args:
        crop: Range of the area of a random crop, as a fraction of the image (see RandomResizedCrop).
        ratio: Range of the aspect ratio of this crop.
        shift: Largest shift, as a fraction of the width or height.
        rotate: Largest rotation in degrees.
        zoom: Range of the zoom factor. The center of the image stays fixed.
        stretch: Largest factor by which the aspect ratio of the image is changed.
        flip: Probability of a horizontal flip.
        brightness, contrast: Largest relative change of brightness and contrast.
        fill: Value (0..255) for pixels outside the image. None repeats the border pixels.
    """

    crop: tuple[float, float] = (1.0, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)
    shift: float = 0.0
    rotate: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    stretch: float = 1.0
    flip: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    fill: float | None = None

    def __post_init__(self) -> None:
        for name in ("crop", "ratio", "zoom"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"{name} must be a pair (low, high) with 0 < low <= high, got {(low, high)}")
        if self.crop[1] > 1:
            raise ValueError(f"crop must be at most 1, because it is a fraction of the area, got {self.crop}")
        if not 0 <= self.flip <= 1 or self.shift < 0 or self.stretch < 1:
            raise ValueError(
                f"flip must be between 0 and 1, shift at least 0 and stretch at least 1, "
                f"got flip={self.flip}, shift={self.shift}, stretch={self.stretch}"
            )

    def compute_maps(self, seed: int, epoch: int, indices: ArrayLike, height: int, width: int) -> Tensor:
        """Return affine maps [B, 2, 3] from output to input coordinates, one for each image, for `affine_grid`."""
        u = uniform(seed, epoch, indices, 10).T
        area = self.crop[0] + u[0] * (self.crop[1] - self.crop[0])
        aspect = np.exp(_interpolate(np.log(self.ratio), u[1]))
        # width and height of the crop as fractions of the image, at most 1
        part_x = np.minimum(np.sqrt(area * aspect * height / width), 1)
        part_y = np.minimum(np.sqrt(area / aspect * width / height), 1)
        if self.crop == (1.0, 1.0) and self.ratio == (1.0, 1.0):
            part_x = part_y = np.ones_like(area)
        center_x, center_y = (2 * u[2] - 1) * (1 - part_x), (2 * u[3] - 1) * (1 - part_y)
        center_x += (2 * u[4] - 1) * 2 * self.shift
        center_y += (2 * u[5] - 1) * 2 * self.shift
        angle = np.radians((2 * u[6] - 1) * self.rotate)
        zoom = np.exp(_interpolate(np.log(self.zoom), u[7]))
        stretch = np.exp((2 * u[8] - 1) * math.log(self.stretch) / 2)
        scale_x, scale_y = part_x / (zoom * stretch), part_y * stretch / zoom
        mirror = np.where(u[9] < self.flip, -1.0, 1.0)
        cos, sin = np.cos(angle), np.sin(angle)
        # rotate in pixel coordinates: in normalized coordinates, the rotation would shear an image that is not square
        aspect_ratio = width / height
        rows = [
            [cos * scale_x * mirror, -sin * scale_y / aspect_ratio, center_x],
            [sin * scale_x * mirror * aspect_ratio, cos * scale_y, center_y],
        ]
        stacked = np.stack([np.stack(row, axis=1) for row in rows], axis=1)
        return torch.from_numpy(stacked.astype(np.float32))

    def __call__(self, x: Tensor, indices: ArrayLike, *, seed: int, epoch: int, size: int | None = None) -> Tensor:
        """Return augmented images [B, C, H, W] with values in 0..255. With `size`, they have size x size pixels.

        On a GPU, the result differs from that on a CPU only by rounding.
        """
        batch, channels, height, width = x.shape
        out = (height, width) if size is None else (size, size)
        theta = self.compute_maps(seed, epoch, indices, height, width).to(x.device, non_blocking=True)
        grid = _make_grid(theta, [batch, channels, *out])
        # grid_sample can only fill with 0, so subtract the fill value before and add it after
        x = F.grid_sample(
            x - self.fill if self.fill else x,
            grid,
            mode="bilinear",
            padding_mode="border" if self.fill is None else "zeros",
            align_corners=False,
        )
        if self.fill:
            x += self.fill
        if self.brightness or self.contrast:
            # ~epoch is negative and thus never a real epoch, so these numbers differ from those of the affine maps
            u = torch.from_numpy((2 * uniform(seed, ~epoch, indices, 2) - 1).astype(np.float32))
            u = u.to(x.device, non_blocking=True)
            x *= (1 + self.brightness * u[:, 0])[:, None, None, None]
            mean = x.mean((1, 2, 3), keepdim=True)
            x = ((x - mean) * (1 + self.contrast * u[:, 1])[:, None, None, None] + mean).clamp_(0, 255)
        return x


def _make_grid(theta: Tensor, size: list[int]) -> Tensor:
    """Return the input coordinates [B, H, W, 2] of each output pixel, like `affine_grid` with align_corners=False."""
    if theta.device.type == "cpu":
        return F.affine_grid(theta, size, align_corners=False)
    # affine_grid is a matrix product, which a GPU may compute in TF32 (about three digits), so avoid it here
    height, width = size[2:]
    x, y = ((2 * torch.arange(n, dtype=theta.dtype, device=theta.device) + 1) / n - 1 for n in (width, height))
    a, b, c = theta[:, None, None].unbind(-1)
    return a * x[None, None, :, None] + b * y[None, :, None, None] + c


def _interpolate(pair: Floats, u: Floats) -> Floats:
    low, high = pair
    mixed: Floats = low + u * (high - low)
    return mixed


DRAWINGS = BatchAugment(shift=0.07, rotate=10.0, zoom=(0.9, 1.1), stretch=1.15, flip=0.5, fill=0.0)
