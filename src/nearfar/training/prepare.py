"""Prepare the samples of a manifest as input of a network: readable images, the cache, the image size, loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from nearfar.config.schema import Config, Data
from nearfar.data import (
    BatchAugment,
    BatchLoader,
    Manifest,
    cache_images,
    create_dataset,
    drop_rows,
    eval_transform,
    scan_images,
    train_transform,
)
from nearfar.data.augment import DRAWINGS
from nearfar.errors import NearfarError
from nearfar.models import Embedder
from nearfar.training.distributed import process_group

Say = Callable[[str], object]
MAX_MESSAGES = 20


@dataclass(frozen=True)
class PreparedData:
    """A manifest with readable images, and the loaders that turn its samples into input of a network.

    Attributes:
        manifest: The samples, decoded into the cache or without unreadable files as the configuration says.
        image_size: Side of the images for the network. None keeps the size of the drawings.
    """

    config: Config
    embedder: Embedder
    manifest: Manifest
    image_size: int | None

    def loader(self, manifest: Manifest | None = None, *, seed: int = 0, workers: int | None = None) -> BatchLoader:
        """Return a loader of all samples, or of a part of them.

        Args:
            manifest: A subset of `self.manifest`, by default all of it.
            seed: Seed of the augmentation.
            workers: Number of worker processes, by default `data.workers`.

        Raises:
            NearfarError: If a setting of `images` does not fit the images.
        """
        manifest = self.manifest if manifest is None else manifest
        if manifest.kind == "features":
            return BatchLoader(create_dataset(manifest))
        try:
            return self._image_loader(manifest, seed, self.config.data.workers if workers is None else workers)
        except ValueError as error:
            raise NearfarError(f"images: {error}") from None

    def _image_loader(self, manifest: Manifest, seed: int, workers: int) -> BatchLoader:
        images, size = self.config.images, self.image_size
        normalization: dict[str, Any] = {"mean": self.embedder.mean, "std": self.embedder.std}
        if manifest.kind == "pixels":
            augment = BatchAugment(crop=(images.min_scale, 1.0), ratio=(3 / 4, 4 / 3))
            augment = replace(DRAWINGS if has_drawings(manifest) else augment, flip=images.flip)
            augment = augment if images.augment else BatchAugment()
            return BatchLoader(create_dataset(manifest, size=size, augment=augment, seed=seed, **normalization))
        assert size is not None
        scale = (images.min_scale, 1.0)
        test = eval_transform(size, images.resize, **normalization)
        train = train_transform(size, scale=scale, flip=images.flip, jitter=images.jitter, **normalization)
        samples = create_dataset(
            manifest,
            size=size,
            train_transform=train if images.augment else test,
            eval_transform=test,
            seed=seed,
            **normalization,
        )
        return BatchLoader(samples, workers=workers)


def prepare(
    config: Config, manifest: Manifest, embedder: Embedder, *, check_images: bool = True, say: Say = print
) -> PreparedData:
    """Prepare a manifest as input of an embedder.

    Args:
        config: The configuration, of which `data` and `images` are read.
        manifest: The samples.
        embedder: The network, which determines image size, mean and standard deviation.
        check_images: Decode image files into `data.cache`, or drop unreadable ones with `data.on_error=skip`. False
            takes all samples of the manifest.
        say: Function that prints a message.
    """
    if check_images:
        manifest = cache_or_check_images(manifest, config.data, size=embedder.input_size, say=say)
    image_size = config.images.crop if has_drawings(manifest) else embedder.input_size
    return PreparedData(config, embedder, manifest, image_size)


def has_drawings(manifest: Manifest) -> bool:
    """Return whether the samples are gray arrays, which keep their size unless `images.crop` is set."""
    return manifest.pixels is not None and manifest.pixels.ndim == 3


def cache_or_check_images(manifest: Manifest, data: Data, *, size: int, say: Say = print) -> Manifest:
    """Decode image files into `data.cache`, or drop unreadable ones with `data.on_error=skip`.

    Args:
        manifest: The samples. Arrays and vectors are returned unchanged.
        data: The settings.
        size: Side of the images for the network. By default the cache stores them a little larger (256 / 224).
        say: Function that prints a message.
    """
    if manifest.kind != "files":
        return manifest
    total = len(manifest)
    hidden = None if process_group.is_main_process() else True  # None: hidden unless there is a terminal
    with tqdm(total=total, unit="image", leave=False, disable=hidden) as bar:
        if data.cache is not None:
            on_error: Literal["raise", "skip"] = "skip" if data.on_error == "skip" else "raise"
            bar.set_description("decode")
            manifest = cache_images(
                manifest,
                Path(data.cache),
                size=data.cache_size or round(size * 256 / 224),
                workers=max(1, data.workers),
                on_error=on_error,
                progress=lambda done: bar.update(done - bar.n),
            )
        elif data.on_error == "skip":
            bar.set_description("check")
            report = scan_images(manifest, workers=max(1, data.workers), progress=lambda *_: bar.update())
            for reason in list(report.broken.values())[:MAX_MESSAGES]:
                say(f"skipped: {reason}")
            manifest = drop_rows(manifest, report.broken)
    if len(manifest) < total:
        say(f"skipped {total - len(manifest)} of {total} images, because they cannot be read")
    return manifest
