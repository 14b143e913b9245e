"""Embeddings without training, for commands that run before there is a model."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.config.schema import Images
from nearfar.data import Manifest
from nearfar.models import create_embedder
from nearfar.training.evaluate import embed, raw_rows
from nearfar.training.prepare import make_loader


def embed_pretrained(manifest: Manifest, *, size: int | None = None) -> Tensor:
    """Return embeddings that need no training: vectors and small arrays as they are, images by EfficientNet-Lite0.

    Args:
        manifest: the samples to embed.
        size: side of the square crop in pixels; the network's own input size by default.
    """
    if manifest.kind != "files":
        return raw_rows(manifest)
    network = create_embedder("efficientnet-lite0", pretrained=True, head="identity", input_size=size)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    loader = make_loader(manifest, Images(), network, side=size or network.input_size, seed=0, workers=2)
    return embed(network, loader, batch_size=64)
