"""Encoder: a run's network as a function from samples and pictures to embeddings, prepared as its own data are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from nearfar.data import Manifest, decode, eval_transform
from nearfar.data.digest import sha256_of
from nearfar.data.layouts.paths import read_regular
from nearfar.data.likeness import likeness
from nearfar.data.open import EMBEDDED
from nearfar.data.transforms import Pipeline
from nearfar.errors import NearfarError
from nearfar.report.thumbnails import Thumbnails
from nearfar.search.nearest import Floats, Ints
from nearfar.training import Run
from nearfar.training.evaluate import embed, to_device
from nearfar.training.prepare import make_loader, readable, side_of


class Encoder:
    """Embeddings [Q, dim] as the network gives them (`Index` makes unit rows of them).

    Pictures become what the run's data are: files are resized and cut as its test pictures; where the data are arrays,
    `nearfar.data.likeness` makes a picture like them, as the page of `nearfar serve` does.
    """

    def __init__(self, run: Run | Path) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        self.network = self.run.embedder()

    @property
    def dim(self) -> int:
        """Of the embeddings."""
        return self.network.dim

    @cached_property
    def model(self) -> str:
        """The sha256 of the weights."""
        return sha256_of(self.run.path / "model.safetensors")

    def samples(self, manifest: Manifest, *, progress: bool = True) -> tuple[Floats, Ints]:
        """Embeddings of a manifest's samples, and their rows: all, but for pictures that the run may skip."""
        config, network = self.run.config, self.network
        self._check(manifest)
        side = side_of(config, network, manifest)
        kept = readable(manifest, config.data, size=side or network.input_size, say=_say)
        loader = make_loader(kept, config.images, network, side=side, seed=0, workers=config.data.workers)
        found: Floats = embed(network, loader, progress=progress).numpy()
        loader.close()
        return found, _rows_kept(manifest, kept)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What the network takes, without the batch: (channels, height, width), or for vectors (channels,)."""
        network, config = self.network, self.run.config
        if not network.backbone.pictures:
            return (network.channels,)
        if config.images.crop is None and self._own is not None and network.channels == 1:
            assert self._own.pixels is not None
            return (1, *self._own.pixels.shape[1:3])
        return (network.channels, network.input_size, network.input_size)

    @property
    def preparation(self) -> str:
        """In words: what makes the network's input of a picture file, before mean and std."""
        if not self.network.backbone.pictures:
            return "Vectors go in as they are."
        channels, height, width = self.input_shape
        if self._own is not None:
            look = ", white on black, the ink at the top left and as large as fits" if self._drawings else ""
            return f"Pictures are {'gray' if channels == 1 else 'RGB'}, {height} x {width}{look}."
        resize = self.run.config.images.resize or round(height * 256 / 224)
        return f"Pictures are RGB: the short side resized to {resize} (bilinear), then the center {height} x {width}."

    def prepared(self, x: Tensor) -> Floats:
        """Embeddings of uint8 pictures [B, C, H, W] of the network's size, or of vectors [B, channels]."""
        if not self.network.backbone.pictures:
            return self._embed(x)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.network.mean, self.network.std))
        return self._embed((x.float() / 255 - mean) / std)

    def vectors(self, rows: Floats) -> Floats:
        """Embeddings of vectors [Q, channels], for a run that was trained on vectors."""
        return self.prepared(torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32)))

    def pictures(self, pictures: Sequence[Image.Image]) -> Floats:
        """Embeddings of decoded pictures."""
        self._check_sees()
        if self._own is None:
            transform = self._transform
            return self._embed(torch.stack([transform(picture.convert("RGB")) for picture in pictures]))
        assert self._own.pixels is not None
        shape = self._own.pixels.shape[1:]
        pixels = np.stack([likeness(picture, shape, drawings=self._drawings) for picture in pictures])
        none = np.zeros(len(pixels), dtype=np.int64)
        manifest = Manifest(labels=none, classes=("query",), split=np.full(len(pixels), "test"), pixels=pixels)
        return self.samples(manifest, progress=False)[0]

    def file(self, path: str | Path) -> Floats:
        """The embedding [1, dim] of a picture file, decoded as those of the data are."""
        self._check_sees()
        draft = self._transform.draft if self._own is None else None
        return self.pictures([decode(read_regular(Path(path)), str(path), draft=draft)])

    def _check_sees(self) -> None:
        if not self.network.backbone.pictures:
            raise NearfarError(f"{self.run.path}: was trained on vectors: a query is a .npy file or a sample's id")

    def _check(self, manifest: Manifest) -> None:
        """The data are of the kind that the network takes; picture files always become what it takes."""
        channels, pictures = self.network.channels, self.network.backbone.pictures
        have, what = channels, "picture files"
        if manifest.features is not None and manifest.kind == "features":
            have = manifest.features.shape[1]
            what = f"vectors of {have} numbers"
        elif manifest.pixels is not None:
            have = 1 if manifest.pixels.ndim == 3 else 3
            what = "gray pictures" if have == 1 else "color pictures"
        if have != channels or (manifest.kind != "features") != pictures:
            own = (
                ("gray pictures" if channels == 1 else "color pictures")
                if pictures
                else f"vectors of {channels} numbers"
            )
            raise NearfarError(f"{manifest.source or 'the data'}: has {what}, {self.run.path} was trained on {own}")

    @torch.no_grad()
    def _embed(self, x: Tensor) -> Floats:
        found: Floats = self.network(to_device(x, torch.device("cpu"))).float().numpy()
        return found

    @cached_property
    def _own(self) -> Manifest | None:
        """The run's data where its pictures are arrays: they say how large a picture is, and which way round."""
        source = self.run.config.data.source
        return self.run.manifest() if source in EMBEDDED or source.lower().endswith((".npz", ".npy")) else None

    @cached_property
    def _drawings(self) -> bool:
        return self._own is not None and Thumbnails(self._own).look == "drawings"

    @property
    def _transform(self) -> Pipeline:
        network = self.network
        return eval_transform(network.input_size, self.run.config.images.resize, mean=network.mean, std=network.std)


def _rows_kept(manifest: Manifest, kept: Manifest) -> Ints:
    """Rows of the manifest that are still there, which are in the same order."""
    if len(kept) == len(manifest):
        return np.arange(len(manifest))
    rows = enumerate(manifest.paths or ())
    return np.array([next(row for row, path in rows if path == wanted) for wanted in kept.paths or ()], dtype=np.int64)


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
