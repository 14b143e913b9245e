"""The data that a server serves: samples of a run with their vectors, index, images, map and audit.

The id of a sample is its row in the run's data, even if only one split is served. The ids of samples that are only in
the run's index follow after the last row.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearfar.audit import Audit, Neighborhoods, audit, find_near_duplicates
from nearfar.data.manifest import Ints
from nearfar.errors import NearfarError
from nearfar.files import remove_drafts
from nearfar.formatting import counted
from nearfar.model import Model
from nearfar.model_kinds import open_model
from nearfar.ops.geometry import unit
from nearfar.report.thumbnails import Thumbnails
from nearfar.runs import CHECKPOINT
from nearfar.search import Encoder, Index
from nearfar.serve.added_samples import ADDED, load_added_samples
from nearfar.serve.background_task import BackgroundTask
from nearfar.serve.disk_cache import load_or_compute
from nearfar.serve.map_layout import interpolate, lay_out_map
from nearfar.serve.query_input import QueryReader
from nearfar.serve.served_index import open_served_index
from nearfar.training.checkpoint import load_state, read_tensors
from nearfar.training.splits import assign_splits, split_manifest

CACHE_FOLDER, CACHE_VERSION = "serve", 2
Size = Literal["small", "medium", "large"]
SIDES: dict[Size, int] = {"small": 56, "medium": 168, "large": 640}
# Images with sides of at most SMALL_ARRAY pixels are enlarged to at most ENLARGED pixels and encoded losslessly as PNG.
SMALL_ARRAY, ENLARGED = 64, 280
# The largest number of encoded images that are cached in memory.
IMAGE_CACHE = 8192
Say = Callable[[str], object]


class Collection:
    """The samples of a run's data, or of one split of it. Slow results are cached in `RUN/serve`.

    If all splits are served, samples that are only in the run's index are served too. The audit does not include them.

    Args:
        run: The run.
        split: "all", or the split to serve.
        say: A function that is called with messages, such as the number of samples and classes.
    """

    def __init__(self, run: Model, *, split: str = "all", say: Say = print) -> None:
        self.run, self.split = run, split
        remove_drafts(run.path / CACHE_FOLDER)
        self.manifest, _ = assign_splits(run.manifest(), run.config)
        encoder = Encoder(run, manifest=self.manifest)
        self.embedder = encoder.network
        self.calibration = encoder.calibration
        rows = np.arange(len(self.manifest)) if split == "all" else self.manifest.rows(split)
        if not len(rows):
            raise NearfarError(f"{run.path}: the data has no {split} samples: choose another --split")
        self.cache_key: dict[str, Any] = {
            "data": self.manifest.fingerprint,
            "model": encoder.model,
            "split": split,
            "version": CACHE_VERSION,
        }

        def embed() -> dict[str, Tensor]:
            vectors, embedded_rows = encoder.embed_manifest(self.manifest.subset(rows))
            return {"vectors": torch.from_numpy(vectors), "ids": torch.from_numpy(rows[embedded_rows])}

        tensors = self._load_or_compute("vectors", embed)
        ids, added = tensors["ids"].numpy(), load_added_samples(encoder, self.manifest)
        self.added = added if split == "all" else added.without_samples(f"serves only the {split} samples")
        self.run_samples = len(ids)
        self.classes = self.added.classes
        self.ids = np.concatenate([ids, len(self.manifest) + np.arange(len(self.added))])
        self.labels = np.concatenate([self.manifest.labels[ids], self.added.labels])
        say(f"{counted(len(self.ids), 'sample')} of {counted(len(np.unique(self.labels)), 'class', 'classes')}")
        if len(self.added):
            say(f"{len(self.added):,} of them are only in {run.index_folder}")
        if self.added.problem:
            say(self.added.problem)
        self.thumbnails = Thumbnails(self.manifest)
        self.queries = QueryReader(encoder, self.manifest)

        def build_index() -> Index:
            vectors = torch.cat([tensors["vectors"], self.added.vectors])
            names = [self.name_of(id) for id in self.ids.tolist()]
            return Index.from_vectors(vectors, ids=self.ids, labels=self.labels, classes=self.classes, names=names)

        # The index is memory-mapped, so that several processes share its vectors.
        key = {**self.cache_key, "added": self.added.fingerprint}
        self.index = open_served_index(run.path / CACHE_FOLDER / f"index-{split}", key, build_index)
        self._positions = {int(id): i for i, id in enumerate(self.ids)}
        self.map = BackgroundTask(self._map)
        self.audit = BackgroundTask(self._audit)
        self.image = lru_cache(maxsize=IMAGE_CACHE)(self._image)

    @cached_property
    def vectors(self) -> Tensor:
        """The embeddings [N, d] as the network computed them; those of added samples are normalized.

        They are read from the cache when the map or the audit needs them.
        """
        path = self.run.path / CACHE_FOLDER / f"vectors-{self.split}.safetensors"
        tensors, key = read_tensors(path)
        if key != self.cache_key:  # the server has been reloaded with other weights or data since this object was made
            raise NearfarError("the data of this server has just been replaced: try again")
        return torch.cat([tensors["vectors"], self.added.vectors])

    @property
    def version(self) -> str:
        """A string that changes when the data changes. It is part of image URLs, so that browsers can cache images."""
        return hashlib.sha256(f"{self.cache_key['data']} {self.added.fingerprint}".encode()).hexdigest()[:12]

    def name_of(self, id: int) -> str:
        """Return the name of a sample."""
        row = id - len(self.manifest)
        return self.added.names[row] if row >= 0 else self.manifest.name(id)

    def text_of(self, id: int) -> str | None:
        """Return the text of a sample, or None if the sample is not a text or is only in the run's index."""
        texts = self.manifest.texts
        return None if texts is None or id >= len(self.manifest) else texts[id]

    def split_of(self, id: int) -> str:
        """Return the split of a sample, or "added" if the sample is only in the run's index."""
        return ADDED if id >= len(self.manifest) else str(self.manifest.split[id])

    def position_of(self, id: int) -> int | None:
        """Return the position of a sample in `ids`, `labels` and `vectors`, or None if it is not served."""
        return self._positions.get(id)

    def ids_of_class(self, label: int) -> Ints:
        """Return the ids of the samples of a class, ascending."""
        ids: Ints = self.ids[self.labels == label]
        return ids

    def proxies(self) -> tuple[Ints, Tensor] | None:
        """Return (labels [P], vectors [P, d]) of the P proxies of the loss, read from the checkpoint of the run.

        Return None if there is no checkpoint, if the loss has no proxies, or if the proxies do not match the dimension
        of the embeddings or the number of training classes.
        """
        path = self.run.path / CHECKPOINT
        if not path.is_file():
            return None
        proxies = load_state(path)["loss"].get("proxies")
        if proxies is None or proxies.shape[-1] != self.vectors.shape[1]:
            return None
        train = split_manifest(self.run.manifest(), self.run.config).train
        numbers = {name: i for i, name in enumerate(self.manifest.classes)}
        labels = np.array([numbers[name] for name in train.classes], dtype=np.int64)
        if len(labels) != len(proxies):
            return None
        by_class = proxies.reshape(len(proxies), -1, proxies.shape[-1])
        return np.repeat(labels, by_class.shape[1]), by_class.flatten(0, 1)

    def _map(self) -> dict[str, Tensor]:
        """Return the embedding map: `positions` [N, 2] of the samples, `proxies` [P, 2] and `proxy_labels` [P]."""

        def compute() -> dict[str, Tensor]:
            labels, proxies = self.proxies() or (np.zeros(0, np.int64), self.vectors[:0])
            positions = lay_out_map(unit(self.vectors))
            # Proxies can be far from all samples, especially early in training, and t-SNE would place them apart. Each
            # proxy is therefore placed at the mean position of its nearest samples.
            near = interpolate(unit(proxies), unit(self.vectors), positions) if len(proxies) else positions[:0]
            return {"positions": positions, "proxies": near, "proxy_labels": torch.from_numpy(labels)}

        added = {"added": self.added.fingerprint} if len(self.added) else {}
        return self._load_or_compute("map", compute, **added)

    def _audit(self) -> Audit:
        vectors, labels = self.vectors[: self.run_samples], self.labels[: self.run_samples]
        if len(np.unique(labels)) < 2:
            raise NearfarError("an audit needs samples of at least two classes")
        columns = [field.name for field in fields(Audit) if field.name != "classes"]

        def compute() -> dict[str, Tensor]:
            result = audit(vectors, labels)
            return {name: torch.from_numpy(np.ascontiguousarray(getattr(result, name))) for name in columns}

        tensors = self._load_or_compute("audit", compute)
        return Audit(**{name: tensors[name].numpy() for name in columns}, classes=self.manifest.classes)

    def neighborhoods(self) -> Neighborhoods:
        """Return the near duplicates and outliers among the samples of the run's data. This waits for the audit."""
        split = self.manifest.split[self.ids[: self.run_samples]]
        return find_near_duplicates(self.audit.wait(), self.vectors[: self.run_samples], split)

    def _load_or_compute(self, name: str, compute: Callable[[], dict[str, Tensor]], **key: str) -> dict[str, Tensor]:
        path = self.run.path / CACHE_FOLDER / f"{name}-{self.split}.safetensors"
        return load_or_compute(path, {**self.cache_key, **key}, compute)

    def _image(self, id: int, size: Size) -> tuple[bytes, str] | None:
        """Return the encoded image of a sample and its media type, or None if there is no readable image."""
        added = id - len(self.manifest)
        place = (self.thumbnails, id) if added < 0 else self.added.images[added]
        if place is None:
            return None
        thumbnails, row = place
        image = _load_full_image(thumbnails, row) if size == "large" else thumbnails.load_image(row, SIDES[size])
        return None if image is None else encode_image(image, SIDES[size])


def _load_full_image(thumbnails: Thumbnails, row: int) -> Image.Image | None:
    if thumbnails.reader is None or thumbnails.kind == "text":
        return thumbnails.load_image(row)
    try:
        return thumbnails.reader.read_image(row, draft=SIDES["large"])
    except NearfarError:
        return None


def encode_image(image: Image.Image, side: int) -> tuple[bytes, str]:
    """Encode an image for the page, and return (bytes, media type).

    Images whose sides have at most 64 pixels are encoded as PNG and never reduced. They are enlarged by a whole factor
    if the result has at most `side` and at most 280 pixels per side. Larger images are reduced to at most `side` pixels
    per side and encoded as JPEG.
    """
    buffer = io.BytesIO()
    if max(image.size) <= SMALL_ARRAY:
        factor = max(1, min(side, ENLARGED) // max(image.size))
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.LANCZOS)
        image.save(buffer, "PNG")
        return buffer.getvalue(), "image/png"
    image.thumbnail((side, side))
    image.convert("RGB").save(buffer, "JPEG", quality=84)
    return buffer.getvalue(), "image/jpeg"


def open_collection(path: Path, *, split: str = "all", skip_broken: bool = False, say: Say = print) -> Collection:
    """Open the samples of a run directory for serving. See `Collection` for `split` and `say`."""
    run = open_model(path)
    return Collection(run.skip_broken() if skip_broken else run, split=split, say=say)
