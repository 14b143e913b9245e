"""What a server serves: the samples of a run's data with their vectors, index, pictures, map and audit.

A sample's id is its row in the run's data, whatever part of it is served.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearfar.audit import Audit, audit
from nearfar.data.manifest import Ints
from nearfar.errors import NearfarError
from nearfar.ops.geometry import unit
from nearfar.report.thumbnails import Thumbnails
from nearfar.runs import CHECKPOINT
from nearfar.search import Encoder, Index
from nearfar.serve.disk_cache import Later, stored
from nearfar.serve.map_layout import between, lay_out_plane
from nearfar.serve.query import Queries
from nearfar.training import Run
from nearfar.training.checkpoint import load_state
from nearfar.training.prepare import split_up, with_noise

FOLDER, VERSION = "web", 1
Size = Literal["small", "medium", "large"]
SIDES: dict[Size, int] = {"small": 56, "medium": 168, "large": 640}
# encoded pictures kept in memory
KEPT = 8192
Say = Callable[[str], object]


class Collection:
    """The samples of a run's data, or of one split of it; everything slow is kept in `RUN/web`."""

    def __init__(self, run: Run, *, split: str = "all", say: Say = print) -> None:
        self.run, self.split = run, split
        encoder = Encoder(run)
        self.embedder = encoder.network
        self.manifest, _ = with_noise(run.manifest(), run.config.data, seed=run.config.seed)
        wanted = np.arange(len(self.manifest)) if split == "all" else self.manifest.rows(split)
        if not len(wanted):
            raise NearfarError(f"{run.path}: its data has no {split} samples: choose another --split")
        self.key: dict[str, Any] = {
            "data": self.manifest.fingerprint,
            "model": encoder.model,
            "split": split,
            "version": VERSION,
        }

        def embedded() -> dict[str, Tensor]:
            vectors, rows = encoder.embed_manifest(self.manifest.subset(wanted))
            return {"vectors": torch.from_numpy(vectors), "ids": torch.from_numpy(wanted[rows])}

        known = self._stored("vectors", embedded)
        self.vectors, self.ids = known["vectors"], known["ids"].numpy()
        self.labels = self.manifest.labels[self.ids]
        say(f"{len(self.ids):,} samples of {len(np.unique(self.labels)):,} classes")
        self.pictures = Thumbnails(self.manifest)
        self.queries = Queries(run.config, self.embedder, self.manifest, self.pictures.look)
        names = [self.manifest.name(row) for row in self.ids.tolist()]
        self.index = Index.from_vectors(
            self.vectors, ids=self.ids, labels=self.labels, classes=self.manifest.classes, names=names
        )
        self._place = {int(row): i for i, row in enumerate(self.ids)}
        self.map = Later(self._map)
        self.audit = Later(self._audit)
        self.picture = lru_cache(maxsize=KEPT)(self._picture)

    @property
    def version(self) -> str:
        """Another one when data or model change, so that browsers may keep pictures."""
        return str(self.key["data"])[:12]

    def place(self, row: int) -> int | None:
        """Where a sample is in `ids`, `labels` and `vectors`; None where it is not served."""
        return self._place.get(row)

    def rows_of(self, label: int) -> Ints:
        """The samples of a class, ascending."""
        rows: Ints = self.ids[self.labels == label]
        return rows

    def proxies(self) -> tuple[Ints, Tensor] | None:
        """(labels [P], vectors [P, d]) of the loss's proxies at the end of training, where it has some."""
        path = self.run.path / CHECKPOINT
        if not path.is_file():
            return None
        found = load_state(path)["loss"].get("proxies")
        if found is None or found.shape[-1] != self.vectors.shape[1]:
            return None
        train = split_up(self.run.manifest(), self.run.config.data, seed=self.run.config.seed).train
        number = {name: i for i, name in enumerate(self.manifest.classes)}
        labels = np.array([number[name] for name in train.classes], dtype=np.int64)
        if len(labels) != len(found):
            return None
        rows = found.reshape(len(found), -1, found.shape[-1])
        return np.repeat(labels, rows.shape[1]), rows.flatten(0, 1)

    def _map(self) -> dict[str, Tensor]:
        """`places` [N, 2] of the samples, `stars` [P, 2] of the proxies and their `star_labels`."""

        def make() -> dict[str, Tensor]:
            found = self.proxies()
            labels, stars = (np.zeros(0, np.int64), self.vectors[:0]) if found is None else found
            places = lay_out_plane(self.vectors)
            # proxies lie apart from the samples of a young run: each is shown among the samples nearest to it
            near = between(unit(stars), unit(self.vectors), places) if len(stars) else places[:0]
            return {"places": places, "stars": near, "star_labels": torch.from_numpy(labels)}

        return self._stored("map", make)

    def _audit(self) -> Audit:
        if len(np.unique(self.labels)) < 2:
            raise NearfarError("an audit needs samples of at least two classes")
        columns = [each.name for each in fields(Audit) if each.name != "classes"]

        def make() -> dict[str, Tensor]:
            found = audit(self.vectors, self.labels)
            return {name: torch.from_numpy(np.ascontiguousarray(getattr(found, name))) for name in columns}

        kept = self._stored("audit", make)
        return Audit(**{name: kept[name].numpy() for name in columns}, classes=self.manifest.classes)

    def _stored(self, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        return stored(self.run.path / FOLDER / f"{name}-{self.split}.safetensors", self.key, make)

    def _picture(self, row: int, size: Size) -> tuple[bytes, str] | None:
        """The encoded picture of a sample and its type; None where there is none or it cannot be read."""
        image = self._whole(row) if size == "large" else self.pictures.picture(row, SIDES[size])
        return None if image is None else encoded(image, SIDES[size])

    def _whole(self, row: int) -> Image.Image | None:
        if self.pictures.reader is None or self.pictures.look == "words":
            return self.pictures.picture(row)
        try:
            return self.pictures.reader.read_image(row, draft=SIDES["large"])
        except NearfarError:
            return None


def encoded(image: Image.Image, side: int) -> tuple[bytes, str]:
    """A picture no larger than the side as (bytes, type): small arrays enlarged and without loss, photos as JPEG."""
    buffer = io.BytesIO()
    if max(image.size) <= 64:
        times = max(1, min(side, 280) // max(image.size))
        image = image.resize((image.width * times, image.height * times), Image.Resampling.LANCZOS)
        image.save(buffer, "PNG")
        return buffer.getvalue(), "image/png"
    image.thumbnail((side, side))
    image.convert("RGB").save(buffer, "JPEG", quality=84)
    return buffer.getvalue(), "image/jpeg"


def open_collection(path: Path, *, split: str = "all", say: Say = print) -> Collection:
    """The collection of a run's folder."""
    return Collection(Run(path), split=split, say=say)
