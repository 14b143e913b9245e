"""Items: samples of a Python dataset, a Parquet file or tar shards, which are read when they are needed."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image


class ItemSource(Protocol):
    """A sequence of samples.

    An image is given as the bytes of an image file, a Pillow image, or a uint8 array [H, W] or [H, W, 3].
    """

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Any: ...


@dataclass(frozen=True)
class Items:
    """Samples that a source returns by their position.

    Attributes:
        source: The source of the samples.
        rows: Position of each sample in the source [N].
        are_images: If True, the samples are images. Otherwise they are tensors, which are passed to the network as they
            are.
        files: The files that the source reads. Cached results for the samples are used again until the size or
            modification time of one of these files changes. For a source without files, nothing is cached.
    """

    source: ItemSource
    rows: NDArray[np.int64]
    are_images: bool
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Any:
        return self.source[int(self.rows[row])]

    def take(self, rows: slice | NDArray[np.int64]) -> Items:
        """Return the items at the given rows."""
        return replace(self, rows=self.rows[rows])


def encode_item(item: Any) -> bytes:
    """Return an image as the bytes of an image file. Images that are not bytes yet are encoded as PNG."""
    if isinstance(item, bytes):
        return item
    buffer = io.BytesIO()
    as_image(item).save(buffer, "PNG")
    return buffer.getvalue()


def as_image(item: Any) -> Image.Image:
    """Convert a uint8 array [H, W] or [H, W, 3] to a Pillow image. A Pillow image is returned unchanged."""
    return item if isinstance(item, Image.Image) else Image.fromarray(np.asarray(item))
