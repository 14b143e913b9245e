"""A picture from anywhere made like the pictures of a data set that are arrays, as a query for them must be."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from nearfar.data.manifest import Array

# darker than this is no ink
INK = 32


def convert_image(picture: Image.Image, shape: tuple[int, ...], *, drawings: bool) -> Array:
    """uint8 of this shape, [H, W] gray or [H, W, 3], from a picture of any size and mode.

    `drawings`: the data are gray and white on black, see `convert_drawing`. Other images are cropped about their center
    and scaled.

    >>> convert_image(Image.new("RGB", (90, 40), "red"), (8, 8, 3), drawings=False)[0, 0].tolist()
    [255, 0, 0]
    """
    height, width = shape[:2]
    if drawings:
        return convert_drawing(picture, (height, width))
    return np.asarray(ImageOps.fit(picture.convert("RGB" if len(shape) == 3 else "L"), (width, height)))


def convert_drawing(picture: Image.Image, shape: tuple[int, int]) -> Array:
    """A picture of a drawing as one of the data: white on black, its ink moved to the top left and scaled to [H, W].

    Where the edge of the picture is bright it is ink on paper and turned round. A picture of just this shape is left in
    its place, so that a drawing of the data stays what it is.
    """
    gray: Array = np.asarray(picture.convert("L"))
    edge = np.concatenate([gray[0], gray[-1], gray[:, 0], gray[:, -1]])
    if np.median(edge) > 127:
        gray = 255 - gray
    if gray.shape == shape:
        return gray
    result = np.zeros(shape, np.uint8)
    rows, columns = (np.flatnonzero((gray > INK).any(axis)) for axis in (1, 0))
    if not len(rows):
        return result
    ink = Image.fromarray(gray[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    scale = min(shape[0] / ink.height, shape[1] / ink.width)
    small = ink.resize((max(1, round(ink.width * scale)), max(1, round(ink.height * scale))), Image.Resampling.BOX)
    result[: small.height, : small.width] = np.asarray(small)
    # a thin line of a large picture becomes faint: the data's lines reach white
    return (result.astype(np.float64) * (255 / max(1, int(result.max())))).astype(np.uint8)
