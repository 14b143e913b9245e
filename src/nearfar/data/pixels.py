"""Convert an image, for example a search query, to the format of a dataset that stores its images in an array."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from nearfar.data.manifest import Array

# pixels of a white-on-black drawing above this value belong to its lines
INK = 32
# Gray images whose median pixel is below this value are assumed to be drawings on black. Most pixels of a drawing are
# background, so its median is 0. The median of other gray images is rarely this low.
MAX_DARK_MEDIAN = 32


def are_drawings(pixels: Array) -> bool:
    """Return whether images [N, H, W] or [N, H, W, 3] are drawings on black, that is, gray and mostly dark.

    At most 127 of the images are read.
    """
    some = pixels[:: max(1, len(pixels) // 64)]
    return pixels.ndim == 3 and bool(np.median(some) < MAX_DARK_MEDIAN)


def convert_image(image: Image.Image, shape: tuple[int, ...], *, drawings: bool) -> Array:
    """Convert an image of any size and mode to a uint8 array [H, W] (gray) or [H, W, 3].

    Args:
        image: The image.
        shape: Shape of the result, (H, W) or (H, W, 3).
        drawings: If True, the dataset contains white drawings on black, and the image is converted by
            `convert_drawing`. Otherwise it is resized and cropped around its center.

    >>> convert_image(Image.new("RGB", (90, 40), "red"), (8, 8, 3), drawings=False)[0, 0].tolist()
    [255, 0, 0]
    """
    height, width = shape[:2]
    if drawings:
        return convert_drawing(image, (height, width))
    return np.asarray(ImageOps.fit(image.convert("RGB" if len(shape) == 3 else "L"), (width, height)))


def convert_drawing(image: Image.Image, shape: tuple[int, int]) -> Array:
    """Convert a drawing to an array [H, W] with white lines on black.

    The margins of the drawing are removed. The rest is scaled to fit into the array and placed at its top left. An
    image with bright edges is assumed to show dark lines on paper and is inverted. An image that already has this shape
    is not scaled or moved, so drawings of the dataset do not change.
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
    # scaling down makes thin lines faint, so restore the maximum to 255: lines in the dataset are white
    return (result.astype(np.float64) * (255 / max(1, int(result.max())))).astype(np.uint8)
