"""The kind of input that samples are, and whether a network accepts it."""

from __future__ import annotations

from pathlib import Path

from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.models import Embedder


def count_channels(manifest: Manifest) -> int | None:
    """Return the number of input channels or the length of feature vectors, or None for texts and tensors."""
    if manifest.kind == "features" and manifest.features is not None:
        return int(manifest.features.shape[1])
    if manifest.kind in ("text", "tensors"):
        return None
    return 1 if manifest.pixels is not None and manifest.pixels.ndim == 3 else 3


def check_same_kind(embedder: Embedder, manifest: Manifest, run: Path | str) -> None:
    """Check that a network accepts the samples of a manifest. A network for images accepts all image files.

    Args:
        embedder: The network.
        manifest: The samples.
        run: The run or model that the network belongs to, for error messages.

    Raises:
        NearfarError: If the samples are of a different kind or have a different number of channels.
    """
    if (manifest.kind == "text") != embedder.backbone.has_text_input:
        kinds = ("texts", "other data") if manifest.kind == "text" else (f"{manifest.kind}, not texts", "texts")
        raise NearfarError(f"{manifest.source or 'the data'} has {kinds[0]}, but {run} takes {kinds[1]}")
    if manifest.kind in ("text", "tensors"):
        return  # tensors are inputs of the network already, and the network itself checks their shape
    channels, takes_images = embedder.channels, embedder.backbone.has_image_input
    data_channels = channels if manifest.kind == "files" else count_channels(manifest)
    has_images = manifest.kind != "features"
    if data_channels != channels or has_images != takes_images:
        kind = "image files" if manifest.kind == "files" else _describe_kind(data_channels, has_images)
        raise NearfarError(
            f"{manifest.source or 'the data'} has {kind}, but {run} takes {_describe_kind(channels, takes_images)}"
        )


def _describe_kind(channels: int | None, are_images: bool) -> str:
    if not are_images:
        return f"vectors of {channels} numbers"
    return "gray images" if channels == 1 else "color images"
