"""Encoder: compute embeddings of samples, images, texts and vectors with the network of a run."""

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

from nearfar.data import Manifest
from nearfar.data.layouts import embedded_names
from nearfar.data.layouts.paths import read_regular
from nearfar.errors import NearfarError
from nearfar.files import compute_sha256
from nearfar.models.backbones.text_transformer import TextTransformer
from nearfar.runs import Run
from nearfar.search.exact import Vectors
from nearfar.search.image_input import ImageInput
from nearfar.training.evaluate import embed, to_device
from nearfar.training.prepare import check_same_kind, prepare
from nearfar.validation import Ints


class Encoder:
    """Compute embeddings with the network of a run.

    Embeddings are returned as the network computes them; `Index` normalizes them to unit length. Images are prepared in
    the same way as the run's data.

    Args:
        run: A run or its directory.
        manifest: The data of the run, if it is already open.
    """

    def __init__(self, run: Run | Path, *, manifest: Manifest | None = None) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        self.network = self.run.embedder()
        self._manifest = manifest

    @property
    def dim(self) -> int:
        """The number of dimensions of the embeddings."""
        return self.network.dim

    @cached_property
    def model(self) -> str:
        """The sha256 of the weights."""
        return compute_sha256(self.run.path / "model.safetensors")

    @cached_property
    def images(self) -> ImageInput:
        """The converter from images to the network's input."""
        if self.network.backbone.has_text_input:
            raise NearfarError(f"{self.run.path}: was trained on texts: search with a text, not with an image")
        if not self.network.backbone.has_image_input:
            raise NearfarError(f"{self.run.path}: was trained on vectors: search with a .npy file or a sample's id")
        source = self.run.config.data.source
        # Image arrays must be opened, because queries must match their shape and polarity (white on black or not). A
        # folder of image files is not needed, and opening it takes long if there are many files.
        if self._manifest is None and (source in embedded_names() or source.lower().endswith((".npz", ".npy"))):
            self._manifest = self.run.manifest()
        has_arrays = self._manifest is not None and self._manifest.pixels is not None
        return ImageInput(self.run.config, self.network, self._manifest if has_arrays else None)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the network's input without the batch: (channels, height, width), or (channels,) for vectors."""
        return self.images.shape if self.network.backbone.has_image_input else (self.network.channels,)

    @property
    def preparation(self) -> str:
        """A sentence that describes how to prepare an input for the network, before mean and std are applied."""
        if self.network.backbone.has_text_input:
            return f"Texts are tokenized with tokenizer.json and cut after {self.network.input_size} tokens."
        return self.images.description if self.network.backbone.has_image_input else "Vectors are used as they are."

    def embed_manifest(self, manifest: Manifest, *, progress: bool = True) -> tuple[Vectors, Ints]:
        """Return the embeddings [N, dim] of a manifest's samples, and their rows [N] in the manifest.

        All rows are embedded, except those of unreadable images if the run has `data.on_error=skip`.
        """
        check_same_kind(self.network, manifest, self.run.path)
        data = prepare(self.run.config, manifest, self.network, say=_say)
        loader = data.loader()
        vectors: Vectors = embed(self.network, loader, progress=progress).numpy()
        loader.close()
        return vectors, _matching_rows(manifest, data.manifest)

    def embed_batch(self, x: Tensor) -> Vectors:
        """Return the embeddings [B, dim] of uint8 images [B, C, H, W] or of vectors [B, channels].

        Images must have the shape `input_shape` = (C, H, W). Mean and std are applied here.
        """
        if not self.network.backbone.has_image_input:  # vectors, or tokens of texts
            return self._embed(x)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.network.mean, self.network.std))
        return self._embed((x.float() / 255 - mean) / std)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return the tokens of texts, int64 [Q, L], padded with -1. The run must have been trained on texts."""
        backbone = self.network.backbone
        if not isinstance(backbone, TextTransformer):
            raise NearfarError(f"{self.run.path}: was not trained on texts: search with an image, a file or an id")
        return torch.from_numpy(backbone.tokenizer.batch(texts, max_tokens=self.network.input_size))

    def embed_texts(self, texts: Sequence[str]) -> Vectors:
        """Return the embeddings [Q, dim] of texts."""
        return self._embed(self.tokenize(texts))

    def embed_vectors(self, vectors: Vectors) -> Vectors:
        """Return the embeddings [Q, dim] of vectors [Q, channels]. The run must have been trained on vectors."""
        return self.embed_batch(torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)))

    def embed_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Return the embeddings [Q, dim] of decoded images."""
        return self._embed(torch.stack([self.images.prepare(image)[0] for image in images]))

    def embed_file(self, path: str | Path) -> Vectors:
        """Return the embedding [1, dim] of an image file."""
        return self.embed_images([self.images.decode(read_regular(Path(path)), str(path))])

    @torch.no_grad()
    def _embed(self, x: Tensor) -> Vectors:
        vectors: Vectors = self.network(to_device(x, torch.device("cpu"))).float().numpy()
        return vectors


def _matching_rows(manifest: Manifest, subset: Manifest) -> Ints:
    """Return the rows of `manifest` whose samples are in `subset`, which has the same order."""
    if len(subset) == len(manifest):
        return np.arange(len(manifest))
    rows = enumerate(manifest.paths or ())
    return np.array([next(row for row, path in rows if path == name) for name in subset.paths or ()], dtype=np.int64)


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
