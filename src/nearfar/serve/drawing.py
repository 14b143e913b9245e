"""Strokes of a pen rendered like the drawings of Quick, Draw! in the built-in dataset.

The strokes are first simplified as in Quick, Draw!: moved to the top left corner, scaled so that the longer side is
255, and thinned by the Ramer-Douglas-Peucker algorithm with epsilon 2. Then they are drawn one pixel wide by Wu's
algorithm (SIGGRAPH 1991), in which two pixels share each step along the longer axis, in four gray levels. Measurements
on the built-in drawings show these properties: each column of a flat line sums to 1, and each drawing starts in the
first row and column and fills the longer side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearfar.data.layouts.sketches import LEVELS

Line = NDArray[np.float64]
Pixels = NDArray[np.uint8]
Strokes = Sequence[Sequence[Sequence[float]]]

SPAN, EPSILON = 255.0, 2.0
MAX_COORDINATE = 1e9


def render_strokes(strokes: Strokes, side: int) -> Pixels:
    """Return strokes as a uint8 image [side, side], white on black.

    Args:
        strokes: Lists of points [x, y] in any unit, with y downwards.
        side: Height and width of the image.

    >>> render_strokes([[[0, 0], [9, 0]]], 4)[0].tolist()
    [255, 255, 255, 255]
    """
    canvas = np.zeros((side + 1, side + 1))
    for stroke in simplify_strokes(strokes):
        points = stroke * side / (SPAN + 1)
        for start, end in zip(points, points[1:] if len(points) > 1 else points, strict=False):
            _draw_line(canvas, start, end)
    levels = np.rint(canvas[:side, :side] * (LEVELS - 1))
    return (levels * (255 // (LEVELS - 1))).astype(np.uint8)


def simplify_strokes(strokes: Strokes) -> list[Line]:
    """Move strokes to the top left corner, scale their longer side to 255, and thin them with epsilon 2."""
    lines = [np.asarray(stroke, dtype=np.float64).reshape(-1, 2) for stroke in strokes if len(stroke)]
    if not lines:
        raise ValueError("strokes must have at least one point")
    points = np.concatenate(lines)
    if not np.isfinite(points).all():
        raise ValueError("strokes must be finite numbers")
    if np.abs(points).max() > MAX_COORDINATE:
        raise ValueError(f"strokes must have coordinates up to {MAX_COORDINATE:g}, got {np.abs(points).max():g}")
    low, span = points.min(0), float(np.ptp(points, axis=0).max())
    scale = SPAN / span if span > 0 else 0.0
    return [thin_line((line - low) * scale) for line in lines]


def thin_line(line: Line, epsilon: float = EPSILON) -> Line:
    """Thin a line by the Ramer-Douglas-Peucker algorithm.

    Keep both ends and, recursively, the point farthest from the line between them, if it is farther than `epsilon`.

    >>> thin_line(np.array([[0.0, 0], [5, 1], [10, 0], [10, 9]])).tolist()
    [[0.0, 0.0], [10.0, 0.0], [10.0, 9.0]]
    """
    keep = np.zeros(len(line), dtype=np.bool_)
    keep[[0, -1]] = True
    segments = [(0, len(line) - 1)]
    while segments:
        first, last = segments.pop()
        if last - first < 2:
            continue
        inner, along = line[first + 1 : last] - line[first], line[last] - line[first]
        length = float(np.hypot(*along))
        if length > 0:
            distance = np.abs(inner[:, 0] * along[1] - inner[:, 1] * along[0]) / length
        else:
            distance = np.hypot(inner[:, 0], inner[:, 1])
        if distance.max() > epsilon:
            middle = first + 1 + int(distance.argmax())
            keep[middle] = True
            segments += [(first, middle), (middle, last)]
    return line[keep]


def _draw_line(canvas: Line, start: Line, end: Line) -> None:
    """Draw by Wu's algorithm: at each step along the longer axis, two pixels share 1; the brighter value stays."""
    is_steep = abs(end[1] - start[1]) > abs(end[0] - start[0])
    u0, v0, u1, v1 = (*start[::-1], *end[::-1]) if is_steep else (*start, *end)
    if u0 > u1:
        u0, v0, u1, v1 = u1, v1, u0, v0
    u = np.arange(round(u0), round(u1) + 1)
    slope = (v1 - v0) / (u1 - u0) if u1 > u0 else 0.0
    v = np.clip(v0 + slope * (u - u0), 0.0, len(canvas) - 1.0)
    below = np.minimum(v.astype(np.int64), len(canvas) - 2)
    u = np.clip(u, 0, len(canvas) - 1)
    for row, share in ((below, 1 - (v - below)), (below + 1, v - below)):
        pixel = (u, row) if is_steep else (row, u)  # the canvas is [y, x]
        np.maximum.at(canvas, pixel, share)
