"""Convert a query image to the format of a dataset whose images are arrays."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from nearfar.data.manifest import Array

# pixels above this value are ink
INK = 32


def convert_image(image: Image.Image, shape: tuple[int, ...], *, drawings: bool) -> Array:
    """Convert an image of any size and mode to a uint8 array [H, W] (gray) or [H, W, 3].

    Args:
        image: The image.
        shape: Shape of the result.
        drawings: The dataset holds gray drawings, white on black, see `convert_drawing`. Other images are cropped about
            their center and scaled.

    >>> convert_image(Image.new("RGB", (90, 40), "red"), (8, 8, 3), drawings=False)[0, 0].tolist()
    [255, 0, 0]
    """
    height, width = shape[:2]
    if drawings:
        return convert_drawing(image, (height, width))
    return np.asarray(ImageOps.fit(image.convert("RGB" if len(shape) == 3 else "L"), (width, height)))


def convert_drawing(image: Image.Image, shape: tuple[int, int]) -> Array:
    """Convert an image of a drawing to white on black, with its ink moved to the top left and scaled to [H, W].

    An image with bright edges is ink on paper and is inverted. The ink of an image that already has this shape is not
    moved, so a drawing of the dataset is unchanged.
    """
    gray: Array = np.asarray(image.convert("L"))
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
    # a thin line of a large image becomes faint, but the lines of the dataset are white
    return (result.astype(np.float64) * (255 / max(1, int(result.max())))).astype(np.uint8)
