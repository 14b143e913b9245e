"""Datasets: the samples of a manifest as tensors, with one interface for vectors, arrays and files.

`fetch(indices, epoch=..., train=...)` returns a batch of B samples as float32 [B, ...], or the tokens of texts as int64
[B, L]. The augmentation of a sample depends only on (seed, epoch, index).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from nearfar.data.augment import DRAWINGS, BatchAugment
from nearfar.data.images import MAX_PIXELS, ImageReader, map_in_order
from nearfar.data.manifest import Array, Manifest
from nearfar.data.pixel_dataset import PixelDataset
from nearfar.data.transforms import IMAGENET_MEAN, IMAGENET_STD, Pipeline, eval_transform, sample_rng, train_transform
from nearfar.errors import NearfarError
from nearfar.validation import check_choice

Transform = Pipeline | Callable[[Image.Image], Tensor]
OnError = Literal["raise", "skip"]


class BatchDataset(Protocol):
    """Interface of datasets for training. `skipped` maps each row that could not be read to an error message."""

    labels: Tensor
    skipped: dict[int, str]

    def __len__(self) -> int: ...

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """Return the samples at the rows `indices`, float32 [B, ...] or, for texts, int64 tokens [B, L]."""
        ...


class FeatureDataset:
    """Feature vectors as float32, without augmentation. Only the requested vectors are read from a memory map."""

    def __init__(self, manifest: Manifest) -> None:
        if manifest.features is None:
            raise ValueError(f"manifest must contain features, got {manifest!r}")
        self.labels = torch.tensor(manifest.targets)
        self.skipped: dict[int, str] = {}
        self._rows = manifest.features

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """Return the vectors at the rows `indices`, [B, d]."""
        return torch.from_numpy(np.asarray(self._rows[_rows(indices)], dtype=np.float32))


class ImageDataset(Dataset[tuple[Tensor, int, int]]):
    """Torch dataset of image files. An item is (tensor, label, index), and `fetch` returns a batch.

    Args:
        manifest: A manifest of files.
        train_transform, eval_transform: A `Pipeline`, or any function that maps an image to a tensor. While such a
            function runs, the global generators of torch, numpy and Python are seeded from (seed, epoch, index).
        seed: Seed of the transforms.
        on_error: With "raise", a file that cannot be read raises an error. With "skip", it is left out of the batch and
            listed in `skipped`. Indexing (`dataset[i]`) raises an error for such a file even with "skip".
        max_pixels: Images with more pixels than this count as files that cannot be read.
        train: If True, indexing uses the training transform, otherwise the evaluation transform (see `set_epoch`).
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
        self.labels = torch.tensor(manifest.targets)
        self.skipped: dict[int, str] = {}
        self.seed, self.on_error = seed, on_error
        self.transforms: dict[bool, Transform] = {True: train_transform, False: eval_transform}
        self.reader = ImageReader(manifest, max_pixels=max_pixels)
        # in shared memory, so that set_epoch also changes the copies of this object in persistent workers
        self._state = torch.tensor([0, int(train)])
        self._state.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.labels)

    def set_epoch(self, epoch: int, *, train: bool = True) -> None:
        """Set the epoch and the transform that indexing uses, also in persistent workers of a DataLoader."""
        self._state[0], self._state[1] = epoch, int(train)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        epoch, train = self._state.tolist()
        return self.load(index, epoch=epoch, train=bool(train)), int(self.labels[index]), index

    def load(self, index: int, *, epoch: int, train: bool) -> Tensor:
        """Return the transformed image of one row as a tensor."""
        return self.to_input(self._load_pixels(index, epoch=epoch, train=train), train=train)

    def to_input(self, x: Tensor, *, train: bool) -> Tensor:
        """Normalize images that `read` returned, on the device of `x`, if the transform is a `Pipeline`."""
        transform = self.transforms[train]
        return transform.normalize.apply(x) if isinstance(transform, Pipeline) else x

    def _load_pixels(self, index: int, *, epoch: int, train: bool) -> Tensor:
        """Load and transform the image of one row.

        A `Pipeline` gives uint8 pixels without normalization. Any other transform gives its own result.
        """
        transform = self.transforms[train]
        if isinstance(transform, Pipeline):
            image = self.reader.read_image(index, draft=transform.draft)
            return transform.to_pixels(image, sample_rng(self.seed, epoch, index))
        image = self.reader.read_image(index)
        with seed_generators(self.seed, epoch, index):
            return transform(image)

    def read(
        self, indices: Sequence[int] | Tensor, *, epoch: int, train: bool, threads: int = 1
    ) -> tuple[Tensor, list[int], dict[int, str]]:
        """Load the images at the rows `indices` as a batch for `to_input`.

        If the transform is a `Pipeline`, the images are uint8. Copying them between processes and to a GPU then takes a
        quarter of the memory that float32 would take.

        Args:
            indices: Rows of the manifest.
            epoch: Epoch that seeds the transforms.
            train: If True, use the training transform, otherwise the evaluation transform.
            threads: Number of threads. If the transform is not a `Pipeline`, one thread is used, because the transform
                may draw from the global generators.

        Returns:
            The batch, the rows in the batch, and a dict that maps each row that could not be read to an error message.
        """

        def attempt(index: int) -> Tensor | NearfarError:
            try:
                return self._load_pixels(index, epoch=epoch, train=train)
            except NearfarError as error:
                if self.on_error == "raise":
                    raise
                return error

        tensors, loaded, skipped = [], [], {}
        rows = _rows(indices).tolist()
        threads = threads if isinstance(self.transforms[train], Pipeline) else 1
        for index, result in zip(rows, map_in_order(attempt, rows, threads), strict=True):
            if isinstance(result, NearfarError):
                skipped[index] = str(result)
            else:
                tensors.append(result)
                loaded.append(index)
        if not tensors:
            raise NearfarError(
                f"none of the {len(skipped)} images of a batch can be read, the first because: "
                f"{next(iter(skipped.values()), '')}"
            )
        return torch.stack(tensors), loaded, skipped

    def fetch(self, indices: Sequence[int] | Tensor, *, epoch: int = 0, train: bool = False) -> Tensor:
        """Return the images at the rows `indices`, [B, C, H, W], without skipped files (see `read`)."""
        x, _, skipped = self.read(indices, epoch=epoch, train=train)
        self.skipped.update(skipped)
        return self.to_input(x, train=train)


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
    """Create a dataset that matches the kind of the manifest: features, pixels or files.

    The defaults depend on the kind. Files are randomly cropped, flipped and resized to 224 pixels for training, and
    resized and center cropped for evaluation. Gray arrays [N, H, W] are augmented by small affine maps and flips, and
    color arrays [N, H, W, 3] by crops and flips. Files and color arrays are normalized by the mean and std of ImageNet,
    and gray arrays are scaled to 0..1.

    Args:
        manifest: Table of the samples.
        size: Side of the returned images in pixels.
        resize: Short side of image files before the center crop in evaluation (see `eval_transform`).
        train_transform, eval_transform: Transforms of image files (see `ImageDataset`).
        augment: Augmentation of arrays, by default as described above. `BatchAugment()` disables it.
        mean, std: One value for each channel. The default is described above.
        seed: Seed of the augmentation.
        on_error: What to do with files that cannot be read (see `ImageDataset`).
    """
    if manifest.kind == "features":
        return FeatureDataset(manifest)
    color = manifest.pixels is None or manifest.pixels.ndim == 4
    means = tuple(mean) if mean is not None else (IMAGENET_MEAN if color else (0.0,))
    stds = tuple(std) if std is not None else (IMAGENET_STD if color else (1.0,))
    if manifest.kind == "pixels":
        if train_transform is not None or eval_transform is not None:
            raise ValueError(
                "train_transform and eval_transform apply only to files: pass augment=BatchAugment(...) for arrays"
            )
        default = COLOR_IMAGES if color else DRAWINGS
        augment = default if augment is None else augment
        return PixelDataset(manifest, augment=augment, size=size, mean=means, std=stds, seed=seed)
    side = 224 if size is None else size
    return ImageDataset(
        manifest,
        train_transform or _train(side, mean=means, std=stds),
        eval_transform or _eval(side, resize, mean=means, std=stds),
        seed=seed,
        on_error=on_error,
    )


COLOR_IMAGES = BatchAugment(crop=(0.25, 1.0), ratio=(3 / 4, 4 / 3), flip=0.5)
# aliases, because parameters of create_dataset have the same names as these functions
_train, _eval = train_transform, eval_transform


@contextmanager
def seed_generators(seed: int, epoch: int, index: int) -> Iterator[None]:
    """Seed the global generators of torch (CPU), numpy and Python for one sample. Restore their states at exit."""
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
