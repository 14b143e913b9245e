"""Samples of a manifest as tensors, a batch at a time: the same small interface for vectors, arrays and files.

`fetch(indices, epoch=..., train=...)` gives [B, ...] float32; it depends on (seed, epoch, index) and nothing else.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nearfar.data.augment import DRAWINGS, BatchAugment
from nearfar.data.images import MAX_PIXELS, ImageReader, ordered_map
from nearfar.data.manifest import Array, Manifest
from nearfar.data.transforms import IMAGENET_MEAN, IMAGENET_STD, Pipeline, eval_transform, sample_rng, train_transform
from nearfar.errors import NearfarError
from nearfar.validation import check_choice

Transform = Pipeline | Callable[[Image.Image], Tensor]
OnError = Literal["raise", "skip"]


class BatchDataset(Protocol):
    """What the loop needs of data. `skipped` maps rows that could not be read to the reason."""

    labels: Tensor
    skipped: dict[int, str]

    def __len__(self) -> int: ...

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """[B, ...] float32 of these rows."""
        ...


class FeatureDataset:
    """Rows of a feature matrix as float32; nothing is augmented. A memory map is read row by row, never whole."""

    def __init__(self, manifest: Manifest) -> None:
        if manifest.features is None:
            raise ValueError(f"a manifest of features is needed, got {manifest!r}")
        self.labels = torch.tensor(manifest.labels)
        self.skipped: dict[int, str] = {}
        self._rows = manifest.features

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """[B, d]."""
        return torch.from_numpy(np.asarray(self._rows[_rows(indices)], dtype=np.float32))


class PixelDataset:
    """Small pictures in memory (or in a mapped cache), augmented a batch at a time.

    `size` of the result: by default that of the pictures. For evaluation a different size is reached by the center
    crop if it is smaller. One channel for [N, H, W], three for [N, H, W, 3].
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
            raise ValueError(f"a manifest of pixels is needed, got {manifest!r}")
        height, width = manifest.pixels.shape[1:3]
        if size is not None and size > min(height, width):
            raise ValueError(f"size must be at most that of the pictures, {height} x {width}, got {size}")
        channels = 1 if manifest.pixels.ndim == 3 else 3
        if len(mean) != len(std) or len(mean) not in (1, channels):
            raise ValueError(f"mean and std must have {channels} entries (or 1), got {list(mean)} and {list(std)}")
        self.labels = torch.tensor(manifest.labels)
        self.skipped: dict[int, str] = {}
        self.augment, self.size, self.seed = augment, size, seed
        self._pixels = manifest.pixels
        self._scale = torch.tensor([1 / (255 * s) for s in std])[:, None, None]
        self._offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)])[:, None, None]

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """[B, C, H, W], (value / 255 - mean) / std."""
        rows = _rows(indices)
        x = _tensor(self._pixels[rows])
        x = (x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)).float()
        if train and self.augment is not None:
            x = self.augment(x, rows, seed=self.seed, epoch=epoch, size=self.size)
        elif self.size is not None:
            top, left = (x.shape[2] - self.size) // 2, (x.shape[3] - self.size) // 2
            x = x[:, :, top : top + self.size, left : left + self.size]
        return (x * self._scale).add_(self._offset)


class ImageDataset(Dataset[tuple[Tensor, int, int]]):
    """Picture files as a torch data set: item -> (tensor, label, index), and `fetch` for a batch.

    `train_transform` and `eval_transform` are pipelines of nearfar or any callable picture -> tensor. For a foreign
    callable torch's, numpy's and Python's global generators are seeded from (seed, epoch, index) around each call and
    put back afterwards. `train` and `set_epoch` decide what plain indexing does; both reach persistent workers at once.

    A file that cannot be read raises with its path; with on_error="skip" it is left out of the batch and listed in
    `skipped` (plain indexing, which cannot leave out, still raises).
    """

    def __init__(
        self,
        manifest: Manifest,
        train_transform: Transform,
        eval_transform: Transform,
        *,
        seed: int = 0,
        on_error: OnError = "raise",
        max_pixels: int = MAX_PIXELS,
        train: bool = True,
    ) -> None:
        check_choice("on_error", on_error, ("raise", "skip"))
        self.labels = torch.tensor(manifest.labels)
        self.skipped: dict[int, str] = {}
        self.seed, self.on_error = seed, on_error
        self.transforms: dict[bool, Transform] = {True: train_transform, False: eval_transform}
        self.reader = ImageReader(manifest, max_pixels=max_pixels)
        # in shared memory, because persistent workers hold a copy of this object from before the first epoch
        self._state = torch.tensor([0, int(train)])
        self._state.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.labels)

    def set_epoch(self, epoch: int, *, train: bool = True) -> None:
        """The epoch (and kind of transform) of items taken by plain indexing from now on."""
        self._state[0], self._state[1] = epoch, int(train)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        epoch, train = self._state.tolist()
        return self.one(index, epoch=epoch, train=bool(train)), int(self.labels[index]), index

    def one(self, index: int, *, epoch: int, train: bool) -> Tensor:
        """The tensor of one row."""
        transform = self.transforms[train]
        if isinstance(transform, Pipeline):
            picture = self.reader.read_image(index, draft=transform.draft)
            return transform(picture, sample_rng(self.seed, epoch, index))
        picture = self.reader.read_image(index)
        with seeded(self.seed, epoch, index):
            return transform(picture)

    def read(
        self, indices: Sequence[int] | Tensor, *, epoch: int, train: bool, threads: int = 1
    ) -> tuple[Tensor, list[int], dict[int, str]]:
        """The batch, the rows that are in it, and the rows that could not be read with the reason.

        `threads` share the pictures (Pillow works outside the interpreter's lock), unless a foreign callable
        transforms them, which draws from global generators.
        """

        def attempt(index: int) -> Tensor | NearfarError:
            try:
                return self.one(index, epoch=epoch, train=train)
            except NearfarError as error:
                if self.on_error == "raise":
                    raise
                return error

        tensors, kept, skipped = [], [], {}
        rows = _rows(indices).tolist()
        shared = threads if isinstance(self.transforms[train], Pipeline) else 1
        for index, found in zip(rows, ordered_map(attempt, rows, shared), strict=True):
            if isinstance(found, NearfarError):
                skipped[index] = str(found)
            else:
                tensors.append(found)
                kept.append(index)
        if not tensors:
            raise NearfarError(
                f"none of a batch of {len(skipped)} pictures can be read: {next(iter(skipped.values()), '')}"
            )
        return torch.stack(tensors), kept, skipped

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """[B, C, H, W]; B is smaller where a file was skipped (see `read` for which)."""
        x, _, skipped = self.read(indices, epoch=epoch, train=train)
        self.skipped.update(skipped)
        return x


def create_dataset(
    manifest: Manifest,
    *,
    size: int | None = None,
    resize: int | None = None,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    augment: BatchAugment | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
    on_error: OnError = "raise",
) -> FeatureDataset | PixelDataset | ImageDataset:
    """The samples of a manifest by its kind, with sensible defaults.

    Files: RandomResizedCrop + flip to `size` (224) for training, resize + center crop for evaluation, ImageNet's mean
    and std. Drawings [N, H, W]: small affine maps and flips, values 0..1. Cached photos [N, H, W, 3]: crops and flips.
    """
    if manifest.kind == "features":
        return FeatureDataset(manifest)
    color = manifest.pixels is None or manifest.pixels.ndim == 4
    means = tuple(mean) if mean is not None else (IMAGENET_MEAN if color else (0.0,))
    stds = tuple(std) if std is not None else (IMAGENET_STD if color else (1.0,))
    if manifest.kind == "pixels":
        if train_transform is not None or eval_transform is not None:
            raise ValueError("transforms of pictures are for files: pass augment=BatchAugment(...) for arrays")
        usual = PHOTOS if color else DRAWINGS
        chosen = usual if augment is None else augment
        return PixelDataset(manifest, augment=chosen, size=size, mean=means, std=stds, seed=seed)
    side = 224 if size is None else size
    return ImageDataset(
        manifest,
        train_transform or _train(side, mean=means, std=stds),
        eval_transform or _eval(side, resize, mean=means, std=stds),
        seed=seed,
        on_error=on_error,
    )


PHOTOS = BatchAugment(crop=(0.25, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5)
# the parameters of create_dataset have the same names
_train, _eval = train_transform, eval_transform


@contextmanager
def seeded(seed: int, epoch: int, index: int) -> Iterator[None]:
    """Global generators of torch (CPU), numpy and Python, seeded for one sample and put back afterwards."""
    number = int(sample_rng(seed, epoch, index).integers(2**32))
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])


def _rows(indices: Sequence[int] | Tensor) -> Array:
    return np.asarray(indices, dtype=np.int64)


def _tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        # torch warns that a read-only array could be written to; nothing here writes
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
