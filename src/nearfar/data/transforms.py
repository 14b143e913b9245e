"""Picture transforms on Pillow, in two kinds of pipeline: for training and for evaluation.

A step is a callable `(picture, rng) -> picture`; all its randomness comes from `rng`, a numpy Generator that the data
set makes from (seed, epoch, index), so that a sample looks the same whichever worker prepares it. In place of a
pipeline any callable `picture -> tensor` will do (torchvision v2, kornia, a lambda).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

Picture = Image.Image
Rng = np.random.Generator
Step = Callable[[Picture, Rng], Picture]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
BILINEAR = Image.Resampling.BILINEAR
WHITE = (255, 255, 255)


def sample_rng(seed: int, epoch: int, index: int) -> Rng:
    """The generator of one sample in one epoch; nothing else decides what it gives.

    >>> sample_rng(0, 3, 7).random() == sample_rng(0, 3, 7).random() != sample_rng(0, 4, 7).random()
    True
    """
    return np.random.default_rng([seed, epoch, index])


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the picture, `scale` of its area and with an aspect ratio in `ratio`, resized to a square.

    The rule of GoogLeNet's training: area uniform, ratio log-uniform, ten tries, then the largest centered part with an
    allowed ratio. `scale=(0.16, 1)` is MLRC's.
    """

    size: int
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        _check_range("scale", self.scale, 0, 1)
        _check_range("ratio", self.ratio, 0, math.inf)

    def __call__(self, picture: Picture, rng: Rng) -> Picture:
        left, top, width, height = self.box(picture.size, rng)
        return picture.resize((self.size, self.size), BILINEAR, box=(left, top, left + width, top + height))

    def box(self, size: tuple[int, int], rng: Rng) -> tuple[int, int, int, int]:
        """left, top, width, height of the part, in pixels."""
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
    """The short side to `size`, the long side in proportion."""

    size: int

    def __call__(self, picture: Picture, rng: Rng) -> Picture:
        width, height = picture.size
        short = min(width, height)
        if short == self.size:
            return picture
        target = (max(1, round(width * self.size / short)), max(1, round(height * self.size / short)))
        return picture.resize(target, BILINEAR)


@dataclass(frozen=True)
class CenterCrop:
    """The square in the middle; a smaller picture is filled up with black around it."""

    size: int

    def __call__(self, picture: Picture, rng: Rng) -> Picture:
        left, top = (picture.width - self.size) // 2, (picture.height - self.size) // 2
        return picture.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True)
class HorizontalFlip:
    """Left and right exchanged with probability p."""

    p: float = 0.5

    def __call__(self, picture: Picture, rng: Rng) -> Picture:
        return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < self.p else picture


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast and saturation each times a factor in [1 - x, 1 + x], in random order."""

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or above, got {getattr(self, name)}")

    def __call__(self, picture: Picture, rng: Rng) -> Picture:
        # the same number of draws whatever is switched on, so that one option does not change another's values
        factors = rng.uniform(-1, 1, 3)
        kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        strengths = (self.brightness, self.contrast, self.saturation)
        for i in rng.permutation(3).tolist():
            if strengths[i]:
                picture = kinds[i](picture).enhance(max(0.0, 1 + strengths[i] * float(factors[i])))
        return picture


@dataclass(frozen=True)
class RandomAffine:
    """A small rotation (degrees), shift (share of the side) and zoom about the center; what comes in is `fill`."""

    degrees: float = 0.0
    shift: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    fill: tuple[int, int, int] = WHITE

    def __post_init__(self) -> None:
        _check_range("zoom", self.zoom, 0, math.inf)

    def __call__(self, picture: Picture, rng: Rng) -> Picture:
        angle, dx, dy = rng.uniform(-1, 1, 3).tolist()
        angle = math.radians(angle * self.degrees)
        zoom = math.exp(rng.uniform(math.log(self.zoom[0]), math.log(self.zoom[1])))
        width, height = picture.size
        dx, dy = dx * self.shift * width, dy * self.shift * height
        # output -> input: undo the shift, turn back and shrink about the center
        cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
        cx, cy = width / 2, height / 2
        x0, y0 = cx + dx, cy + dy
        matrix = (cos, sin, cx - cos * x0 - sin * y0, -sin, cos, cy + sin * x0 - cos * y0)
        fill: tuple[int, int, int] | int = self.fill if picture.mode == "RGB" else self.fill[0]
        return picture.transform((width, height), Image.Transform.AFFINE, matrix, BILINEAR, fillcolor=fill)


@dataclass(frozen=True)
class Normalize:
    """To a float tensor [C, H, W]: (value / 255 - mean) / std."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise ValueError(f"mean and std must have the same length and std be above 0, got {self.mean}, {self.std}")

    def __call__(self, picture: Picture) -> Tensor:
        pixels = np.asarray(picture)
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if pixels.shape[2] != len(self.mean):
            raise ValueError(f"mean has {len(self.mean)} channels but the picture {pixels.shape[2]}")
        # channels first as bytes, which is four times less to move than as floats
        x = torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float()
        scale = torch.tensor([1 / (255 * s) for s in self.std])[:, None, None]
        offset = torch.tensor([-m / s for m, s in zip(self.mean, self.std, strict=True)])[:, None, None]
        return x.mul_(scale).add_(offset)


@dataclass(frozen=True)
class Pipeline:
    """Steps, then normalization. `draft` is the shortest side a JPEG must still have after decoding (None: all)."""

    steps: tuple[Step, ...]
    normalize: Normalize = Normalize()
    draft: int | None = None
    gray: bool = False

    def __call__(self, picture: Picture, rng: Rng | None = None) -> Tensor:
        """Without `rng`, as evaluation calls it, a random step draws from a generator with seed 0."""
        rng = sample_rng(0, 0, 0) if rng is None else rng
        for step in self.steps:
            picture = step(picture, rng)
        return self.normalize(picture.convert("L") if self.gray else picture)


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
    """RandomResizedCrop, flip, jitter (brightness[, contrast[, saturation]]), normalize. One mean = gray pictures.

    JPEGs are decoded no smaller than lets the smallest crop have `size` pixels, so no detail is lost to the draft.
    """
    steps: list[Step] = [RandomResizedCrop(size, scale, ratio)]
    if flip:
        steps.append(HorizontalFlip(flip))
    if any(jitter):
        steps.append(ColorJitter(*jitter))
    # the narrowest crop of the smallest area: side * sqrt(scale * ratio)
    needed = math.ceil(size / math.sqrt(scale[0] * min(ratio[0], 1 / ratio[1])))
    return Pipeline(tuple(steps), Normalize(mean, std), needed, gray=len(mean) == 1)


def eval_transform(
    size: int,
    resize: int | None = None,
    *,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> Pipeline:
    """Short side to `resize` (by default size * 256 / 224, rounded), center crop, normalize. One mean = gray pictures.

    JPEGs are decoded at no less than twice `resize`: below, the picture would differ visibly from a full decode.
    """
    resize = round(size * 256 / 224) if resize is None else resize
    if resize < size:
        raise ValueError(f"resize must be at least the size {size}, got {resize}")
    return Pipeline((Resize(resize), CenterCrop(size)), Normalize(mean, std), 2 * resize, gray=len(mean) == 1)


def _check_range(name: str, value: tuple[float, float], low: float, high: float) -> None:
    if not low < value[0] <= value[1] <= high:
        raise ValueError(f"{name} must be an ascending pair above {low} and at most {high}, got {value}")
