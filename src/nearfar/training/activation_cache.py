"""Compute the activations of the frozen blocks once, and train on them from disk.

`model.train_from` names the lowest block that is trained. All blocks below it are frozen, so the same input gives the
same activations in every step. The cache holds these activations for several views of the data. A view is one version
of all images of a part of the data, such as the training images. In the augmented view v, each image has the
augmentation that it would get in epoch v without a cache. In the evaluation view, images are not augmented.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearfar.config.schema import Config
from nearfar.data import BatchLoader, Manifest
from nearfar.data.activations import ActivationDataset
from nearfar.data.cache import fingerprint_images
from nearfar.data.manifest import Array
from nearfar.data.row_store import RowLayout, RowStore, count_absent
from nearfar.errors import NearfarError
from nearfar.formatting import counted, disk_size
from nearfar.models import Embedder
from nearfar.training.activation_key import activation_key, digest_frozen_weights
from nearfar.training.cache_progress import CacheProgress
from nearfar.training.evaluate import autocast, default_batch_size, dtype_of, set_layout, to_device

TRAIN, TEST = "train", "test"

Part = tuple[Manifest, BatchLoader]
# (name of a part of the data such as "train", number of the augmented view or None for the evaluation view)
View = tuple[str, int | None]


@dataclass(frozen=True)
class Entry:
    """The cache entry of a view: its folder, the layout of its rows, and a description that is stored with the rows."""

    folder: Path
    layout: RowLayout
    about: dict[str, str | int | None]


class ActivationCache:
    """The cached activations of the samples of a run. See `build` for when missing views are computed.

    Attributes:
        views: Number of augmented views of the training images.
        weights: Digest of the frozen weights that the activations belong to.
    """

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        parts: Mapping[str, Part],
        *,
        device: torch.device,
        say: Callable[[str], object] = print,
    ) -> None:
        """Plan the views so that they fit into `cache.limit_gb`.

        Args:
            config: The configuration of the run.
            embedder: The embedder. Its frozen part must already have its final weights.
            parts: A dict that maps the name of each part of the data ("train" is required) to its manifest and a loader
                of its images.
            device: Device that computes the activations.
            say: Function that prints a message.
        """
        kind = next(iter(parts.values()))[0].kind
        if kind in ("features", "text"):
            what = "feature vectors" if kind == "features" else "texts"
            raise NearfarError(f"cache.activations needs images, but the data are {what}: set cache.activations=null")
        self.config, self.parts, self.device, self.say = config, parts, device, say
        # a copy, because the embedder itself is moved and initialized later
        self.network = copy.deepcopy(embedder).to(device)
        set_layout(self.network)
        self.network.eval()
        self.weights = digest_frozen_weights(embedder)
        self._fingerprints = {name: fingerprint_images(manifest) for name, (manifest, _) in parts.items()}
        train_images = parts[TRAIN][1].dataset
        # keyed by whether the view is augmented: with images.train_crop, augmented images have another size
        self._shapes = {train: self.compute(train_images.fetch([0], train=train)).shape[1:] for train in (False, True)}
        self.views = self._fit_views()
        self._stores: dict[Path, RowStore] = {}  # kept open, so that no other process removes them during the run

    def build(self) -> None:
        """Compute all views that the run will certainly read. Other views are computed when they are first read."""
        entries = list({entry.folder: (view, entry) for view, entry in self._plan(self.views)}.values())
        incomplete = []
        missing = missing_bytes = 0
        for view, entry in entries:
            store = self._stores[entry.folder] = RowStore(entry.folder, entry.layout, entry.about)
            rows = self._count_missing(store)
            if rows:
                incomplete.append((view, store))
                missing += rows
                missing_bytes += rows * entry.layout.row_bytes
        self._check_space(missing_bytes)
        with CacheProgress(missing, self.say) as progress:
            for view, store in incomplete:
                self._complete(view, store, progress)
        for _, loader in self.parts.values():
            loader.close()

    def count_planned(self) -> tuple[int, int, int]:
        """Count the images of the views that the run will certainly read, without opening or creating the views.

        Returns:
            The number of images, the number of these images that are not in the cache yet, and the size of the
            activations of all images in bytes.
        """
        layouts = {entry.folder: entry.layout for _, entry in self._plan(self.views)}
        absent = sum(count_absent(folder, layout) for folder, layout in layouts.items())
        rows = sum(layout.rows for layout in layouts.values())
        return rows, absent, sum(layout.rows * layout.row_bytes for layout in layouts.values())

    def loader(self, name: str) -> BatchLoader:
        """Return a loader that reads the activations of a part of the data, such as "train"."""
        labels = self.parts[name][1].dataset.labels
        return BatchLoader(ActivationDataset(labels, partial(self._open, name), views=self.views), device=self.device)

    def check_weights(self, embedder: Embedder) -> None:
        """Raise an error if the frozen weights differ from those that the activations were computed with.

        For example, they differ if a run is resumed after the weight file that `model.pretrained` names has changed, or
        with another network of your own.
        """
        if digest_frozen_weights(embedder) != self.weights:
            raise NearfarError(
                "the frozen blocks of the checkpoint differ from those that the activations were computed with: "
                "resume with the weights that the run started from (model.pretrained or your own network), or start a "
                "new run"
            )

    def _entry(self, view: View) -> Entry:
        name, number = view
        config, (manifest, loader) = self.config, self.parts[name]
        key = activation_key(
            config,
            self.network,
            loader.dataset,
            weights=self.weights,
            images=self._fingerprints[name],
            view=number,
        )
        layout = RowLayout(len(manifest), tuple(self._shapes[number is not None]), config.cache.dtype)
        about = {
            "data": manifest.source or config.data.source,
            "part": name,
            "view": TEST if number is None else number,
            "backbone": config.model.backbone,
            "train_from": self.network.first_trained,
            "dtype": config.cache.dtype,
            "seed": config.seed if number is not None and config.images.augment else None,
        }
        return Entry(Path(str(config.cache.activations)).expanduser() / key, layout, about)

    def _plan(self, views: int) -> list[tuple[View, Entry]]:
        """Return the views that the run will certainly read if it has this number of augmented views."""
        config = self.config
        planned: list[View] = [(TRAIN, number) for number in range(views)]
        has_data_init = config.model.init == "pca" or config.model.proxies == "class-means"
        if has_data_init or config.pacing or config.log_train or config.batches.mining:
            planned.append((TRAIN, None))
        for name in self.parts:
            if name not in (TRAIN, TEST) or (name == TEST and (config.test or config.select.by == TEST)):
                planned.append((name, None))
        return [(view, self._entry(view)) for view in planned]

    def _fit_views(self) -> int:
        """Return the number of augmented views.

        This is the largest number that fits into `cache.limit_gb` and exceeds neither `cache.views` nor `epochs` (if it
        is set). Without augmentation, it is 1.
        """
        config = self.config
        wanted = min(config.cache.views, config.epochs or config.cache.views) if config.images.augment else 1
        limit = config.cache.limit_gb
        if limit is None:
            return wanted
        for views in range(wanted, 0, -1):
            size = sum({entry.folder: entry.layout.size for _, entry in self._plan(views)}.values())
            if size <= limit * 1e9:
                if views < wanted:
                    self.say(f"cache.limit_gb={limit:g} has room for {counted(views, 'view')} instead of {wanted}")
                return views
        raise NearfarError(
            f"cache.limit_gb={limit:g} is too small: with one augmented view, the cache takes {disk_size(size)}; "
            "raise the limit, use cache.dtype=float16, or set model.train_from to a later block"
        )

    def _check_space(self, size: int) -> None:
        folder = Path(str(self.config.cache.activations)).expanduser()
        free = shutil.disk_usage(folder).free
        if size > free:
            raise NearfarError(
                f"{folder}: the cache needs {disk_size(size)} more, but only {disk_size(free)} are free: "
                "delete files, or lower cache.limit_gb or cache.views"
            )

    def _open(self, name: str, number: int | None) -> RowStore:
        """Open a view of a part of the data such as "train". Compute the activations that are missing."""
        entry = self._entry((name, number))
        if entry.folder not in self._stores:
            store = self._stores[entry.folder] = RowStore(entry.folder, entry.layout, entry.about)
            rows = self._count_missing(store)
            if rows:
                with CacheProgress(rows, self.say) as progress:
                    self._complete((name, number), store, progress)
        return self._stores[entry.folder]

    def _count_missing(self, store: RowStore) -> int:
        """Return the number of rows of a view that must still be computed, and warn about damaged shards."""
        absent, damaged = store.find_missing()
        for number in damaged:
            self.say(f"warning: {store.folder}: shard {number} is damaged and is computed again")
        return sum(len(store.layout.shard(number)) for number in [*absent, *damaged])

    def _complete(self, view: View, store: RowStore, progress: CacheProgress) -> None:
        """Compute the missing shards of a view."""
        name, number = view
        loader, layout = self.parts[name][1], store.layout
        with store.building(lambda: self.say(f"waiting for another process that is computing {store.folder}")):
            absent, damaged = store.find_missing()  # again, because another process may have computed shards meanwhile
            shards = sorted([*absent, *damaged])
            jobs = [(shard, rows) for shard in shards for rows in self._batches(layout.shard(shard))]
            batches = loader.load((rows for _, rows in jobs), epoch=number or 0, train=number is not None)
            results = ((shard, self.compute(batch.x)) for (shard, _), batch in zip(jobs, batches, strict=True))
            for shard, group in groupby(results, key=lambda result: result[0]):
                parts = []
                for _, activations in group:
                    parts.append(self._convert(activations))
                    progress.update(len(activations), parts[-1].nbytes)
                store.write_shard(shard, np.concatenate(parts))

    def _batches(self, rows: range) -> Iterator[list[int]]:
        size = default_batch_size(self.network)
        for start in range(0, len(rows), size):
            yield list(rows[start : start + size])

    @torch.no_grad()
    def compute(self, x: Tensor) -> Tensor:
        """Compute the activations of images on the device, and return them on the CPU in float32."""
        with autocast(self.config.autocast, self.device):
            inputs = to_device(x, self.device, dtype_of(self.network), channels_last=self.network.channels_last)
            activations: Tensor = self.network.lower(inputs)
        return activations.float().cpu().contiguous()

    def _convert(self, activations: Tensor) -> Array:
        dtype = self.config.cache.dtype
        with np.errstate(over="ignore"):
            rows: Array = activations.numpy().astype(dtype)
        if not np.isfinite(rows).all():
            largest = float(activations.abs().max())
            solution = "check the weights" if dtype == "float32" else "set cache.dtype=float32"
            raise NearfarError(f"cache.dtype={dtype} cannot hold activations up to {largest:g}: {solution}")
        return rows
