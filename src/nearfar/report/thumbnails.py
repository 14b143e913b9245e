"""Small pictures of samples as data URIs, whatever a sample is; None where there is nothing to show.

Gray drawings on black become ink on paper; other arrays and files are shown as they are, cut to a square as the
evaluation's center crop does.
"""

from __future__ import annotations

import base64
import io
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from nearfar.data.images import ImageReader
from nearfar.data.manifest import Array, Manifest
from nearfar.errors import NearfarError

SIDE, SMALL_SIDE = 96, 44
LEVELS = 16
# a drawing on black is mostly black: its median is 0, that of a gray photo hardly ever below this
DARK = 32
Look = Literal["drawings", "pictures", "words"]


class Thumbnails:
    """Pictures of the samples of a manifest.

    `look` is "drawings" (gray, on black), "pictures" (arrays or files) or "words" (vectors: there is only a name).
    Vectors whose `paths` can be read below `root` are shown by those files.
    """

    def __init__(self, data: Manifest) -> None:
        self.data = data
        self.reader: ImageReader | None = None
        self.look: Look = "pictures"
        if data.pixels is not None:
            some = data.pixels[:: max(1, len(data) // 64)]
            if data.pixels.ndim == 3 and np.median(some) < DARK:
                self.look = "drawings"
        elif data.paths is None or data.root is None:
            self.look = "words"
        else:
            self.reader = ImageReader(data)
            if data.kind == "features" and self.picture(0) is None:
                self.look = "words"

    def picture(self, row: int, side: int = SIDE) -> Image.Image | None:
        """RGB or gray, square for files; None for words and for a file that cannot be read."""
        if self.look == "words":
            return None
        if self.data.pixels is not None:
            values = self.data.pixels[row]
            return Image.fromarray(255 - values if self.look == "drawings" else np.ascontiguousarray(values))
        assert self.reader is not None
        try:
            return ImageOps.fit(self.reader.read_image(row, draft=2 * side), (side, side))
        except NearfarError:
            return None

    def large(self, row: int) -> str | None:
        """For a row of results: about 96 pixels."""
        image = self.picture(row)
        if image is None:
            return None
        if self.look == "drawings":
            return gray_png(image.resize((SIDE, SIDE), Image.Resampling.LANCZOS))
        image.thumbnail((SIDE, SIDE))
        return jpeg(image)

    def small(self, row: int, color: str = "#000000") -> str | None:
        """For a map of hundreds: about 44 pixels, or a drawing in its own size as ink of a color without paper."""
        image = self.picture(row, SMALL_SIDE)
        if image is None:
            return None
        if self.look == "drawings":
            image.thumbnail((SMALL_SIDE, SMALL_SIDE))
            return ink_png(image, color)
        image = image if max(image.size) <= SMALL_SIDE else ImageOps.fit(image, (SMALL_SIDE, SMALL_SIDE))
        return jpeg(image, quality=72)


def jpeg(image: Image.Image, quality: int = 82) -> str:
    """A JPEG as a data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True, subsampling=0 if max(image.size) < 64 else 2)
    return _uri("jpeg", buffer.getvalue())


def png(image: Image.Image) -> str:
    """A PNG as a data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _uri("png", buffer.getvalue())


def gray_png(image: Image.Image) -> str:
    """A gray picture in 16 levels as a data URI."""
    return _indexed(_levels(image), [level * 255 // (LEVELS - 1) for level in range(LEVELS) for _ in range(3)], None)


def ink_png(image: Image.Image, color: str) -> str:
    """Dark on white as a color on nothing: 16 levels of opacity."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    opacity = bytes(level * 255 // (LEVELS - 1) for level in range(LEVELS))
    return _indexed(LEVELS - 1 - _levels(image), [red, green, blue] * LEVELS, opacity)


def _levels(image: Image.Image) -> Array:
    values: Array = (np.asarray(image.convert("L"), dtype=np.uint16) * (LEVELS - 1) + 127) // 255
    return values.astype(np.uint8)


def _indexed(levels: Array, palette: list[int], opacity: bytes | None) -> str:
    image = Image.fromarray(levels)
    image.putpalette(palette)
    buffer = io.BytesIO()
    options = {} if opacity is None else {"transparency": opacity}
    image.save(buffer, "PNG", bits=4, optimize=True, **options)
    return _uri("png", buffer.getvalue())


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
