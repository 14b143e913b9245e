"""Prepare the samples of a manifest as network input: check or cache the images, set their size, create loaders."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from tqdm import tqdm

from nearfar.config.schema import Config, Data, Images
from nearfar.data import (
    BatchAugment,
    BatchDataset,
    BatchLoader,
    Manifest,
    cache_images,
    create_dataset,
    drop_rows,
    eval_transform,
    train_transform,
)
from nearfar.data.augment import DRAWINGS
from nearfar.data.near_duplicates import describe_near_duplicates
from nearfar.data.tensor_dataset import TensorDataset
from nearfar.data.text_dataset import TextDataset
from nearfar.data.verification import describe_broken, verify_images
from nearfar.errors import NearfarError
from nearfar.formatting import counted
from nearfar.models import Embedder
from nearfar.models.backbones.text_transformer import TextTransformer
from nearfar.training.distributed import process_group
from nearfar.training.evaluate import device_of

Say = Callable[[str], object]
MAX_MESSAGES = 20
STRIDE = 32  # input pixels per pixel of the last feature map, in the usual convolutional networks


@dataclass(frozen=True)
class PreparedData:
    """A manifest, with loaders that turn its samples into network input.

    Attributes:
        manifest: The samples. Depending on the configuration, images are read from the cache, and samples with
            unreadable files are left out.
        image_size: Side of the network input in pixels. None is used only for grayscale arrays, which then keep their
            size.
        say: Function that prints messages about the samples, or None.
    """

    config: Config
    embedder: Embedder
    manifest: Manifest
    image_size: int | None
    say: Say | None = None

    def loader(
        self,
        manifest: Manifest | None = None,
        *,
        seed: int = 0,
        workers: int | None = None,
        device: torch.device | None = None,
    ) -> BatchLoader:
        """Return a loader of all samples, or of a subset.

        Args:
            manifest: A subset of `self.manifest`, by default all of it.
            seed: Seed of the augmentation.
            workers: Number of worker processes, by default `data.workers`.
            device: Device of the batches, by default that of the embedder.

        Raises:
            NearfarError: If a setting of `images` does not fit the images.
        """
        manifest = self.manifest if manifest is None else manifest
        device = device_of(self.embedder) if device is None else device
        if manifest.kind == "features":
            return BatchLoader(create_dataset(manifest), device=device)
        if manifest.kind == "tensors":
            return BatchLoader(TensorDataset(manifest), device=device)
        if isinstance(self.embedder.backbone, TextTransformer):
            tokenizer, size = self.embedder.backbone.tokenizer, self.embedder.input_size
            texts = TextDataset(manifest, tokenizer, max_tokens=size)
            if texts.cut and self.say is not None:
                self.say(
                    f"{texts.cut:,} of {counted(len(texts), 'text')} reach the limit of {size} tokens and may be "
                    "truncated (model.max_tokens)"
                )
            return BatchLoader(texts, device=device)
        try:
            workers = self.config.data.workers if workers is None else workers
            return BatchLoader(self._image_dataset(manifest, seed), workers=workers, device=device)
        except ValueError as error:
            raise NearfarError(f"images: {error}") from None

    def _image_dataset(self, manifest: Manifest, seed: int) -> BatchDataset:
        images, size = self.config.images, self.image_size
        if self.embedder.transform is not None:
            if manifest.kind != "files":
                raise ValueError("the network has its own transform, which takes image files, not arrays")
            own = self.embedder.transform
            return create_dataset(manifest, train_transform=own, eval_transform=own, seed=seed)
        normalization: dict[str, Any] = {"mean": self.embedder.mean, "std": self.embedder.std}
        if manifest.kind == "pixels":
            if images.train_crop is not None:
                raise ValueError("train_crop needs image files, but the data are arrays: set images.train_crop=null")
            augment = BatchAugment(crop=(images.min_scale, 1.0), ratio=(3 / 4, 4 / 3))
            augment = replace(DRAWINGS if has_drawings(manifest) else augment, flip=images.flip)
            augment = augment if images.augment else BatchAugment()
            return create_dataset(manifest, size=size, augment=augment, seed=seed, **normalization)
        assert size is not None
        scale = (images.min_scale, 1.0)
        test = eval_transform(size, images.resize, **normalization)
        train_size = training_size(images, size)
        if train_size != size and not self.embedder.backbone.has_map_output:
            raise ValueError(
                f"train_crop={images.train_crop} gives training images of {train_size} pixels, and test images have "
                f"{size} pixels, but this network needs "
                "images of one size: set images.train_crop=null"
            )
        train = train_transform(train_size, scale=scale, flip=images.flip, jitter=images.jitter, **normalization)
        return create_dataset(
            manifest,
            size=size,
            train_transform=train if images.augment else test,
            eval_transform=test,
            seed=seed,
            **normalization,
        )


def prepare(
    config: Config, manifest: Manifest, embedder: Embedder, *, check_images: bool = True, say: Say = print
) -> PreparedData:
    """Prepare the samples of a manifest as input for an embedder.

    Args:
        config: The configuration.
        manifest: The samples.
        embedder: The network, which determines image size, mean and standard deviation.
        check_images: If True, check that image files can be read and, if `data.cache` is set, cache the decoded images
            there. Otherwise, use the manifest unchanged.
        say: Function that prints a message.
    """
    if check_images:
        manifest = cache_or_check_images(manifest, config.data, size=embedder.input_size, say=say)
    image_size = config.images.crop if has_drawings(manifest) else embedder.input_size
    return PreparedData(config, embedder, manifest, image_size, say if check_images else None)


def training_size(images: Images, size: int) -> int:
    """Return the side of training images in pixels.

    Args:
        images: The settings.
        size: Side of test images in pixels.

    >>> training_size(Images(train_crop=None), 224), training_size(Images(train_crop=128), 224)
    (224, 128)
    >>> [training_size(Images(train_crop=0.7), size) for size in (28, 224, 260)]
    [28, 160, 192]
    """
    if images.train_crop is None:
        return size
    if images.train_crop >= 1:
        return int(images.train_crop)
    return min(size, math.ceil(images.train_crop * size / STRIDE) * STRIDE)


def has_drawings(manifest: Manifest) -> bool:
    """Return whether the samples are grayscale arrays, which keep their size unless `images.crop` is set."""
    return manifest.pixels is not None and manifest.pixels.ndim == 3


def cache_or_check_images(manifest: Manifest, data: Data, *, size: int, say: Say = print) -> Manifest:
    """Check that the image files of a manifest can be read, cache them if `data.cache` is set, and return the manifest.

    Args:
        manifest: The samples. A manifest without image files is returned unchanged.
        data: The settings. With `data.on_error=skip`, unreadable images are dropped; otherwise they are an error.
        size: Side of the network input in pixels. By default, cached images are larger by a factor of 256 / 224.
        say: Function that prints a message.
    """
    if manifest.kind != "files" or (not _has_files(manifest) and data.cache is None):
        return manifest
    if not _has_files(manifest):
        raise NearfarError(
            f"{manifest.source}: the images of a Python dataset cannot be cached: set data.cache to null"
        )
    manifest, broken = _check_images(manifest, skip=data.on_error == "skip", workers=data.workers, say=say)
    if data.cache is None:
        return drop_rows(manifest, broken)
    side = data.cache_size or round(size * 256 / 224)
    with _progress(len(manifest), "decode") as bar:
        cached = cache_images(
            manifest,
            Path(data.cache),
            size=side,
            workers=max(1, data.workers),
            on_error="skip" if data.on_error == "skip" else "raise",
            progress=lambda done: bar.update(done - bar.n),
        )
    # identify the images by their content, because the modification times of files change when they are copied
    return replace(cached, digest=f"{manifest.digest} {side}")


def drop_or_refuse_broken(manifest: Manifest, *, skip: bool, workers: int = 1, say: Say = print) -> Manifest:
    """Drop unreadable images from a manifest, or raise an error for them, before any other work starts.

    Args:
        manifest: The samples. A manifest without image files is returned unchanged.
        skip: If True, drop unreadable images; otherwise, raise an error.
        workers: Number of threads that read images.
        say: Function that prints a message.

    Raises:
        NearfarError: If images cannot be read and `skip` is False, or if none can be read.
    """
    if manifest.kind != "files" or not _has_files(manifest):
        return manifest
    return drop_rows(*_check_images(manifest, skip=skip, workers=workers, say=say))


def _has_files(manifest: Manifest) -> bool:
    """Return whether the images are in files. Images of a Python dataset are not checked."""
    return manifest.items is None or bool(manifest.items.files)


def _check_images(manifest: Manifest, *, skip: bool, workers: int, say: Say) -> tuple[Manifest, dict[int, str]]:
    """Check the images of a manifest.

    Return the manifest and a dict that maps the row of each unreadable image to the reason. The manifest gets a hash of
    the image files as its digest, and a note about near-duplicates. Raise an error if images are unreadable and `skip`
    is False, or if all are.
    """
    with _progress(len(manifest), "check") as bar:
        tell = say if bar.disable else _be_silent
        found = verify_images(manifest, workers=max(1, workers), say=tell, progress=lambda *_: bar.update())
    if found.broken and (not skip or len(found.broken) == len(manifest)):
        raise NearfarError(describe_broken(manifest, found.broken))
    for reason in list(found.broken.values())[:MAX_MESSAGES]:
        say(f"skipped: {reason}")
    if found.broken:
        say(f"skipped {len(found.broken):,} of {counted(len(manifest), 'image')}, because they cannot be read")
    repeated = describe_near_duplicates(found.hashes, manifest.split)
    if repeated:
        say(f"warning: {repeated}")
    noted = manifest.with_labels(manifest.labels, repeated)
    return replace(noted, digest=found.content), found.broken


def _progress(total: int, name: str) -> tqdm[NoReturn]:
    hidden = None if process_group.is_main_process() else True  # with None, tqdm shows the bar only in a terminal
    return tqdm(total=total, desc=name, unit="image", leave=False, disable=hidden)


def _be_silent(text: str) -> None:
    """Print nothing, because a progress bar is shown."""
