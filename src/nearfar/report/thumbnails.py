"""Small images of samples as data URIs.

Gray drawings on a black background are inverted to black on white. Other images keep their colors. Image files are
cropped to a centered square.
"""

from __future__ import annotations

import base64
import io
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from nearfar.data.images import ImageReader
from nearfar.data.manifest import Array, Manifest
from nearfar.data.pixels import are_drawings
from nearfar.errors import NearfarError

SIDE, SMALL_SIDE = 96, 44
LEVELS = 16
ThumbnailKind = Literal["drawings", "images", "text"]


class Thumbnails:
    """Small images of the samples of a manifest.

    Attributes:
        data: The samples.
        kind: "drawings" (gray arrays with drawings on black), "images" (other arrays, or files) or "text" (no images).
            Feature vectors are shown as images if their manifest has a `root` and `paths` to readable image files.
        reader: Reader of the image files; None if there are no files.
    """

    def __init__(self, data: Manifest) -> None:
        self.data = data
        self.reader: ImageReader | None = None
        self.kind: ThumbnailKind = "images"
        if data.pixels is not None:
            if are_drawings(data.pixels):
                self.kind = "drawings"
        elif data.kind == "tensors" or (data.items is None and (data.paths is None or data.root is None)):
            self.kind = "text"
        else:
            self.reader = ImageReader(data)
            if data.kind == "features" and self.load_image(0) is None:
                self.kind = "text"

    def load_image(self, row: int, side: int = SIDE) -> Image.Image | None:
        """Return the image of a sample (RGB or gray); None if it has no image or the file cannot be read.

        Image files are cropped and resized to a square of `side` pixels. Arrays keep their size.
        """
        if self.kind == "text":
            return None
        if self.data.pixels is not None:
            values = self.data.pixels[row]
            return Image.fromarray(255 - values if self.kind == "drawings" else np.ascontiguousarray(values))
        assert self.reader is not None
        try:
            return ImageOps.fit(self.reader.read_image(row, draft=2 * side), (side, side))
        except NearfarError:
            return None

    def encode_large(self, row: int) -> str | None:
        """Return an image of at most 96 x 96 pixels as a data URI; None if there is no image."""
        image = self.load_image(row)
        if image is None:
            return None
        if self.kind == "drawings":
            return encode_gray_png(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
        image.thumbnail((SIDE, SIDE))
        return encode_jpeg(image)

    def encode_small(self, row: int, color: str = "#000000") -> str | None:
        """Return an image of at most 44 x 44 pixels as a data URI; None if there is no image.

        A drawing is drawn in `color` on a transparent background.
        """
        image = self.load_image(row, SMALL_SIDE)
        if image is None:
            return None
        if self.kind == "drawings":
            image.thumbnail((SMALL_SIDE, SMALL_SIDE))
            return encode_ink_png(image, color)
        image = image if max(image.size) <= SMALL_SIDE else ImageOps.fit(image, (SMALL_SIDE, SMALL_SIDE))
        return encode_jpeg(image, quality=72)


def encode_jpeg(image: Image.Image, quality: int = 82) -> str:
    """Return an image as a JPEG data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True, subsampling=0 if max(image.size) < 64 else 2)
    return _uri("jpeg", buffer.getvalue())


def encode_png(image: Image.Image) -> str:
    """Return an image as a PNG data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _uri("png", buffer.getvalue())


def encode_gray_png(image: Image.Image) -> str:
    """Reduce an image to 16 levels of gray and return it as a PNG data URI."""
    return _encode_indexed(
        _quantize(image), [level * 255 // (LEVELS - 1) for level in range(LEVELS) for _ in range(3)], None
    )


def encode_ink_png(image: Image.Image, color: str) -> str:
    """Recolor a drawing on a white background, and return it as a PNG data URI.

    The lines get the color `color`, with 16 levels of opacity. The background becomes transparent.
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    opacity = bytes(level * 255 // (LEVELS - 1) for level in range(LEVELS))
    return _encode_indexed(LEVELS - 1 - _quantize(image), [red, green, blue] * LEVELS, opacity)


def _quantize(image: Image.Image) -> Array:
    values: Array = (np.asarray(image.convert("L"), dtype=np.uint16) * (LEVELS - 1) + 127) // 255
    return values.astype(np.uint8)


def _encode_indexed(levels: Array, palette: list[int], opacity: bytes | None) -> str:
    image = Image.fromarray(levels)
    image.putpalette(palette)
    buffer = io.BytesIO()
    options = {} if opacity is None else {"transparency": opacity}
    image.save(buffer, "PNG", bits=4, optimize=True, **options)
    return _uri("png", buffer.getvalue())


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
