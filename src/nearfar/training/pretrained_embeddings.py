"""Compute embeddings with pretrained networks, for commands that run before training."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.config.schema import Config, Data
from nearfar.data import Manifest
from nearfar.models import create_embedder
from nearfar.training.distributed.process_group import local_device
from nearfar.training.evaluate import embed, raw_features
from nearfar.training.prepare import prepare


def embed_pretrained(manifest: Manifest, *, size: int | None = None) -> Tensor:
    """Return the vectors [N, d] of samples without training a network.

    Feature vectors are returned unchanged, pixel arrays are flattened, image files are embedded by a pretrained
    EfficientNet-Lite0, and texts by all-MiniLM-L6-v2.

    Args:
        manifest: The samples to embed.
        size: Side of the square crop in pixels, by default the input size of the network.
    """
    if manifest.kind == "text":
        text_network = create_embedder("all-minilm-l6-v2", pretrained=True, head="identity")
        return embed(text_network, prepare(Config(), manifest, text_network).loader())
    if manifest.kind != "files":
        return raw_features(manifest)
    network = create_embedder("efficientnet-lite0", pretrained=True, head="identity", input_size=size)
    network.to(device=local_device("auto"), memory_format=torch.channels_last)  # type: ignore[call-overload]
    data = prepare(Config(data=Data(workers=2)), manifest, network, check_images=False)
    return embed(network, data.loader(), batch_size=64)
