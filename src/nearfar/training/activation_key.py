"""Keys of cached activations: hashes of everything that determines the values of the activations."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from nearfar.config.schema import Config
from nearfar.data import BatchDataset, ImageDataset, PixelDataset
from nearfar.models import Embedder

VERSION = 3  # 2: shards of 4 MB instead of 16 MB; 3: batch norm is part of the convolution
KEY_LENGTH = 24


def digest_frozen_weights(embedder: Embedder) -> str:
    """Return the SHA-256 of the names, types, shapes and values of the frozen part of an embedder."""
    digest = hashlib.sha256()
    for name, tensor in sorted(embedder.frozen_state().items()):
        if name.endswith("num_batches_tracked"):  # has no effect on the activations
            continue
        values = tensor.cpu().contiguous().numpy()
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()


def activation_key(
    config: Config, embedder: Embedder, dataset: BatchDataset, *, weights: str, images: str, view: int | None
) -> str:
    """Return the name of a view in the cache. Views with the same name have the same activations.

    Args:
        config: The configuration of the run.
        embedder: The network, whose frozen part computes the activations.
        dataset: The dataset that reads and transforms the images.
        weights: Digest of the frozen weights.
        images: Fingerprint of the image files.
        view: Number of the augmented view; None is the view for evaluation.
    """
    is_random = view is not None and config.images.augment
    parts: dict[str, Any] = {
        "version": VERSION,
        "weights": weights,
        "backbone": embedder.config["backbone"],
        "modules": [type(module).__name__ for module in embedder.frozen_modules()],
        "pooling": repr(embedder.pooling),
        "first_trained": embedder.first_trained,
        "images": images,
        "transform": _describe_transform(embedder, dataset, train=view is not None),
        "view": view if is_random else None,
        "seed": config.seed if is_random else None,
        "dtype": config.cache.dtype,
        "autocast": config.autocast,
    }
    if embedder.first_trained != "head":
        del parts["pooling"]  # pooling comes after the cached activations, so it does not change them
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:KEY_LENGTH]


def _describe_transform(embedder: Embedder, dataset: BatchDataset, *, train: bool) -> str:
    if isinstance(dataset, ImageDataset):
        return repr(dataset.transforms[train])
    assert isinstance(dataset, PixelDataset)
    return repr((dataset.augment if train else None, dataset.size, embedder.mean, embedder.std))
