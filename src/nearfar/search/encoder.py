"""Encoder: compute embeddings of samples, images, texts and vectors with the network of a run or another model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from nearfar.calibration import Calibration, load_calibration
from nearfar.data import Manifest
from nearfar.data.items import as_image
from nearfar.data.layouts.paths import read_regular
from nearfar.data.layouts.text_checks import check_texts
from nearfar.errors import NearfarError
from nearfar.files import expand_user
from nearfar.model import Model
from nearfar.model_kinds import open_model
from nearfar.models.backbones.text_transformer import TextTransformer
from nearfar.ops.geometry import unit
from nearfar.search.exact import Vectors
from nearfar.search.image_input import ImageInput
from nearfar.training.embedder_file import truncate_embedder
from nearfar.training.evaluate import default_batch_size, device_of, embed, to_device
from nearfar.training.input_kind import check_same_kind
from nearfar.training.prepare import prepare
from nearfar.validation import Ints, check_count


class Encoder:
    """Compute embeddings with the network of a model.

    `encode` normalizes embeddings to unit length by default. All other methods return them as the network computes
    them, and `Index` normalizes them. Images are prepared in the same way as the data of the model.

    Args:
        run: A model, or anything that `open_model` accepts: a run directory, the name of a backbone, a saved model or
            an index.
        manifest: The data of the model, if it is already open.
        device: The device of the network. With "auto", a CUDA GPU is used if there is one.
        truncate: Number of leading dimensions of the embeddings to keep, for models that were trained with
            `loss.matryoshka`. By default, all dimensions are kept.

    Attributes:
        run: The model.
        network: The network of the model.
    """

    def __init__(
        self,
        run: Model | Path | str,
        *,
        manifest: Manifest | None = None,
        device: str = "auto",
        truncate: int | None = None,
    ) -> None:
        self.run = run if isinstance(run, Model) else open_model(run)
        self.network = truncate_embedder(self.run.embedder(device=device), truncate)
        self._manifest = manifest if manifest is not None else self.run.data

    @property
    def dim(self) -> int:
        """The number of dimensions of the embeddings."""
        return self.network.dim

    @cached_property
    def model(self) -> str:
        """The SHA-256 of the weights. An index stores it to identify the model that computed its vectors."""
        return self.run.digest

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration of the model (thresholds and probabilities for distances), or None if it has none."""
        return load_calibration(self.run, self.network)

    def truncate(self, size: int) -> None:
        """Keep only the first `size` dimensions of the embeddings from now on."""
        self.network = truncate_embedder(self.network, size)
        self.__dict__.pop("calibration", None)  # a calibration is valid for only one number of dimensions

    @cached_property
    def images(self) -> ImageInput:
        """The converter from images to the network's input."""
        if self.network.backbone.has_text_input:
            raise NearfarError(f"{self.run.path} was trained on texts: search with a text, not with an image")
        if not self.network.backbone.has_image_input:
            raise NearfarError(f"{self.run.path} was trained on vectors: search with a .npy file or a sample's id")
        if self._manifest is None:
            self._manifest = self.run.array_data()
        has_arrays = self._manifest is not None and self._manifest.pixels is not None
        return ImageInput(self.run.config, self.network, self._manifest if has_arrays else None)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input of the network: (channels, height, width), or (channels,) for vectors."""
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
        """Return the embeddings [B, dim] of uint8 images [B, C, H, W], vectors [B, channels] or tokens [B, L].

        Images must have the shape `input_shape` = (C, H, W). Mean and std are applied here. If the network has its own
        transform, `x` must hold results of this transform instead of images, and mean and std are not applied.
        """
        if not self.network.takes_pixels:  # vectors, tokens of texts, or results of the network's transform
            return self._embed(x)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.network.mean, self.network.std))
        return self._embed((x.float() / 255 - mean) / std)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return the tokens of texts, int64 [Q, L], padded with -1. The run must have been trained on texts."""
        backbone = self.network.backbone
        if not isinstance(backbone, TextTransformer):
            raise NearfarError(f"{self.run.path} was not trained on texts: search with an image, a file or an id")
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

    def encode(
        self,
        inputs: Any,
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
        normalize: bool = True,
        truncate: int | None = None,
    ) -> Vectors:
        """Return the embeddings [N, dim] of N inputs, or [dim] for a single path, image or text.

        Args:
            inputs: Images as paths, Pillow images or uint8 arrays [H, W] or [H, W, 3]; or texts, if the network takes
                texts; or vectors [N, channels]; or a tensor of network inputs [N, ...].
            batch_size: Number of inputs that pass through the network at once. The default depends on the image size.
            progress: If True, a progress bar is shown. By default, it is shown in a terminal if there are several
                batches.
            normalize: If True, the embeddings are scaled to unit norm, so that their dot products are cosines.
            truncate: Keep only the first `truncate` dimensions, before the embeddings are normalized.

        Raises:
            NearfarError: If an image cannot be read, or if the inputs do not fit the network.
        """
        if truncate is not None and check_count("truncate", truncate) > self.dim:
            raise ValueError(f"truncate must be at most {self.dim}, the dimension of the embeddings, got {truncate}")
        is_single = isinstance(inputs, str | Path | Image.Image)
        items = [inputs] if is_single else inputs
        size = batch_size or default_batch_size(self.network)
        starts = range(0, len(items), check_count("batch_size", size))
        hidden = len(starts) < 2 or None if progress is None else not progress
        parts = [np.zeros((0, self.dim), np.float32)]
        with tqdm(total=len(items), desc="encode", unit="sample", leave=False, disable=hidden) as bar:
            for start in starts:
                batch = items[start : start + size]
                parts.append(self._encode_batch(batch))
                bar.update(len(batch))
        vectors = np.concatenate(parts)[:, :truncate]
        vectors = unit(torch.from_numpy(vectors)).numpy() if normalize else vectors
        return vectors[0] if is_single else vectors

    def _encode_batch(self, batch: Any) -> Vectors:
        if self.network.backbone.has_text_input:
            check_texts(self.run.path, list(batch), range(len(batch)))
            return self.embed_texts(batch)
        if isinstance(batch, Tensor) or not self.network.backbone.has_image_input:
            return self._embed(torch.as_tensor(np.asarray(batch) if not isinstance(batch, Tensor) else batch).float())
        return self.embed_images([self._open_image(item) for item in batch])

    def _open_image(self, item: Any) -> Image.Image:
        if isinstance(item, str | Path):
            return self.images.decode(read_regular(expand_user(item)), str(item))
        return as_image(item).convert("RGB") if self.network.channels == 3 else as_image(item)

    @torch.no_grad()
    def _embed(self, x: Tensor) -> Vectors:
        x = to_device(x, device_of(self.network), channels_last=self.network.channels_last)
        try:
            vectors: Vectors = self.network(x).float().cpu().numpy()
        except ValueError as error:
            raise NearfarError(str(error)) from None
        return vectors


def _matching_rows(manifest: Manifest, subset: Manifest) -> Ints:
    """Return the rows of `manifest` whose samples are in `subset`. Both list their samples in the same order."""
    if len(subset) == len(manifest):
        return np.arange(len(manifest))
    rows = enumerate(manifest.paths or ())
    return np.array([next(row for row, path in rows if path == name) for name in subset.paths or ()], dtype=np.int64)


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
