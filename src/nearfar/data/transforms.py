"""Transforms of Pillow images, combined into pipelines for training and for evaluation.

A step is a callable `(image, rng) -> image`. It must take all random numbers from `rng`, a numpy Generator that the
dataset creates from (seed, epoch, index), so that a sample does not depend on the worker that loads it. Instead of a
pipeline, any callable `image -> tensor` can be used, for example from torchvision v2 or kornia.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

Rng = np.random.Generator
Step = Callable[[Image.Image, Rng], Image.Image]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
BILINEAR = Image.Resampling.BILINEAR
WHITE = (255, 255, 255)


def sample_rng(seed: int, epoch: int, index: int) -> Rng:
    """Return the random generator of one sample in one epoch. It depends only on the arguments.

    >>> sample_rng(0, 3, 7).random() == sample_rng(0, 3, 7).random() != sample_rng(0, 4, 7).random()
    True
    """
    return np.random.default_rng([seed, epoch, index])


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crop a random part of the image and resize it to a square.

    The area is drawn uniformly and the aspect ratio log-uniformly, as in torchvision. If none of ten draws fits into
    the image, the crop is the largest centered part with an allowed aspect ratio. The Metric Learning Reality Check
    (Musgrave et al., ECCV 2020) uses scale=(0.16, 1).

    Args:
        size: Side of the result in pixels.
        scale: Range of the area of the crop, as a fraction of the image.
        ratio: Range of the aspect ratio (width / height) of the crop.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        _check_range("scale", self.scale, 0, 1)
        _check_range("ratio", self.ratio, 0, math.inf)

    def __call__(self, image: Image.Image, rng: Rng) -> Image.Image:
        left, top, width, height = self.box(image.size, rng)
        return image.resize((self.size, self.size), BILINEAR, box=(left, top, left + width, top + height))

    def box(self, size: tuple[int, int], rng: Rng) -> tuple[int, int, int, int]:
        """Return left, top, width and height of a random crop in pixels."""
        width, height = size
        for _ in range(10):
            area = width * height * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
        w = max(1, min(width, round(height * self.ratio[1])))
        h = max(1, min(height, round(width / self.ratio[0])))
        return (width - w) // 2, (height - h) // 2, w, h


@dataclass(frozen=True)
class Resize:
    """Resize the short side to `size`, and the long side in proportion."""

    size: int

    def __call__(self, image: Image.Image, rng: Rng) -> Image.Image:
        width, height = image.size
        short = min(width, height)
        if short == self.size:
            return image
        target = (max(1, round(width * self.size / short)), max(1, round(height * self.size / short)))
        return image.resize(target, BILINEAR)


@dataclass(frozen=True)
class CenterCrop:
    """Crop a square of side `size` at the center. Smaller images are padded with black."""

    size: int

    def __call__(self, image: Image.Image, rng: Rng) -> Image.Image:
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        return image.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True)
class HorizontalFlip:
    """Flip the image horizontally with probability p."""

    p: float = 0.5

    def __call__(self, image: Image.Image, rng: Rng) -> Image.Image:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < self.p else image


@dataclass(frozen=True)
class ColorJitter:
    """Multiply brightness, contrast and saturation by random factors, in random order.

    Each factor is drawn from [1 - x, 1 + x], where x is the value of the field brightness, contrast or saturation.
    Negative factors are set to 0.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or above, got {getattr(self, name)}")

    def __call__(self, image: Image.Image, rng: Rng) -> Image.Image:
        # always draw three factors, so that setting one field to 0 does not change the factors of the others
        factors = rng.uniform(-1, 1, 3)
        kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        strengths = (self.brightness, self.contrast, self.saturation)
        for i in rng.permutation(3).tolist():
            if strengths[i]:
                image = kinds[i](image).enhance(max(0.0, 1 + strengths[i] * float(factors[i])))
        return image


@dataclass(frozen=True)
class RandomAffine:
    """Rotate, shift and zoom the image randomly.

    Args:
        degrees: Largest rotation in degrees.
        shift: Largest shift, as a fraction of the width or height.
        zoom: Range of the zoom factor. The center of the image stays fixed.
        fill: Color for pixels outside the image.
    """

    degrees: float = 0.0
    shift: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    fill: tuple[int, int, int] = WHITE

    def __post_init__(self) -> None:
        _check_range("zoom", self.zoom, 0, math.inf)

    def __call__(self, image: Image.Image, rng: Rng) -> Image.Image:
        angle, dx, dy = rng.uniform(-1, 1, 3).tolist()
        angle = math.radians(angle * self.degrees)
        zoom = math.exp(rng.uniform(math.log(self.zoom[0]), math.log(self.zoom[1])))
        width, height = image.size
        dx, dy = dx * self.shift * width, dy * self.shift * height
        # Pillow needs the map from output to input coordinates, which is the inverse of shift, rotation and zoom
        cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
        cx, cy = width / 2, height / 2
        x0, y0 = cx + dx, cy + dy
        matrix = (cos, sin, cx - cos * x0 - sin * y0, -sin, cos, cy + sin * x0 - cos * y0)
        fill: tuple[int, int, int] | int = self.fill if image.mode == "RGB" else self.fill[0]
        return image.transform((width, height), Image.Transform.AFFINE, matrix, BILINEAR, fillcolor=fill)


@dataclass(frozen=True)
class Normalize:
    """Convert an image to a float tensor [C, H, W] with values (pixel / 255 - mean) / std."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ValueError(
                f"mean and std must have the same length, and every std must be above 0, got mean={self.mean}, "
                f"std={self.std}"
            )

    def __call__(self, image: Image.Image) -> Tensor:
        return self.apply(self.to_pixels(image))

    def to_pixels(self, image: Image.Image) -> Tensor:
        """Convert an image to uint8 [C, H, W], without changing its values."""
        pixels = np.asarray(image)
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if pixels.shape[2] != len(self.mean):
            raise ValueError(f"mean has {len(self.mean)} values, but the image has {pixels.shape[2]} channels")
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())

    def apply(self, pixels: Tensor) -> Tensor:
        """Normalize images with values in 0..255, [..., C, H, W], on their device."""
        scale = torch.tensor([1 / (255 * s) for s in self.std])[:, None, None]
        offset = torch.tensor([-m / s for m, s in zip(self.mean, self.std, strict=True)])[:, None, None]
        scale, offset = (values.to(pixels.device, non_blocking=True) for values in (scale, offset))
        return pixels.float().mul_(scale).add_(offset)


@dataclass(frozen=True)
class Pipeline:
    """Steps that transform an image, followed by its conversion to a tensor.

    Args:
        steps: Transforms in the order in which they are applied.
        normalize: Conversion to a tensor.
        draft: Shortest side in pixels that the steps need. A JPEG may be decoded at a reduced size, as long as its
            shortest side is at least this long (see `decode_image`). With None, images are decoded at full size.
        gray: If True, the image is converted to one channel.
    """

    steps: tuple[Step, ...]
    normalize: Normalize = Normalize()
    draft: int | None = None
    gray: bool = False

    def __call__(self, image: Image.Image, rng: Rng | None = None) -> Tensor:
        """Transform an image to a tensor. Without `rng`, random steps use a generator with seed 0."""
        return self.normalize.apply(self.to_pixels(image, rng))

    def to_pixels(self, image: Image.Image, rng: Rng | None = None) -> Tensor:
        """Transform an image to uint8 [C, H, W], without the normalization."""
        rng = sample_rng(0, 0, 0) if rng is None else rng
        for step in self.steps:
            image = step(image, rng)
        return self.normalize.to_pixels(image.convert("L") if self.gray else image)


def train_transform(
    size: int,
    *,
    scale: tuple[float, float] = (0.16, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    jitter: Sequence[float] = (),
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> Pipeline:
    """Create the pipeline for training: random resized crop, flip, color jitter, normalization.

    JPEGs may be decoded at a reduced size, as long as the short side of every possible crop has at least `size` pixels.
    This loses no detail.

    Args:
        size: Side of the result in pixels.
        scale, ratio: See `RandomResizedCrop`.
        flip: Probability of a horizontal flip.
        jitter: Up to three strengths, for brightness, contrast and saturation (see `ColorJitter`). Missing ones are 0.
        mean, std: One value for each channel. With a single value, images are converted to gray.
    """
    steps: list[Step] = [RandomResizedCrop(size, scale, ratio)]
    if flip:
        steps.append(HorizontalFlip(flip))
    if any(jitter):
        steps.append(ColorJitter(*jitter))
    # If the shortest side of an image is s, the shortest side of the smallest crop is s * sqrt(scale * ratio), with the
    # smallest scale and the most extreme aspect ratio.
    needed = math.ceil(size / math.sqrt(scale[0] * min(ratio[0], 1 / ratio[1])))
    return Pipeline(tuple(steps), Normalize(mean, std), needed, gray=len(mean) == 1)


def eval_transform(
    size: int,
    resize: int | None = None,
    *,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> Pipeline:
    """Create the pipeline for evaluation: resize, center crop, normalization.

    JPEGs may be decoded at a reduced size, as long as the short side stays at least 2 * `resize`. A smaller size would
    visibly change the result.

    Args:
        size: Side of the result in pixels.
        resize: Short side before the crop, by default size * 256 / 224, rounded.
        mean, std: One value for each channel. With a single value, images are converted to gray.
    """
    resize = round(size * 256 / 224) if resize is None else resize
    if resize < size:
        raise ValueError(f"resize must be at least size={size}, got {resize}")
    return Pipeline((Resize(resize), CenterCrop(size)), Normalize(mean, std), 2 * resize, gray=len(mean) == 1)


def _check_range(name: str, value: tuple[float, float], low: float, high: float) -> None:
    if not low < value[0] <= value[1] <= high:
        raise ValueError(f"{name} must be a pair (a, b) with {low} < a <= b <= {high}, got {value}")
