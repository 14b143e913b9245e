"""Strokes of a pen as the small pictures of Quick, Draw! that the embedded drawings are.

Quick, Draw!'s own simplification comes first: moved to the top left corner, scaled so that the longer side is 255, and
thinned by Ramer, Douglas and Peucker with epsilon 2. Then lines of one pixel by Wu's rule (SIGGRAPH 1991), each step
along the longer axis shared by two pixels, in four gray levels: so are the embedded drawings, measured on them (every
column of a flat line sums to 1, every drawing starts in the first row and column and fills the side).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearfar.data.layouts.sketches import LEVELS

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Strokes = Sequence[Sequence[Sequence[float]]]

SPAN, EPSILON = 255.0, 2.0
FARTHEST = 1e9


def rendered(strokes: Strokes, side: int) -> Bytes:
    """White on black, uint8 [side, side], of strokes [[x, y], ...] in any unit, y downwards.

    >>> rendered([[[0, 0], [9, 0]]], 4)[0].tolist()
    [255, 255, 255, 255]
    """
    canvas = np.zeros((side + 1, side + 1))
    for stroke in simplified(strokes):
        points = stroke * side / (SPAN + 1)
        for start, end in zip(points, points[1:] if len(points) > 1 else points, strict=False):
            _line(canvas, start, end)
    levels = np.rint(canvas[:side, :side] * (LEVELS - 1))
    return (levels * (255 // (LEVELS - 1))).astype(np.uint8)


def simplified(strokes: Strokes) -> list[Floats]:
    """Top left at 0, the longer side 255, points that change a line by at most 2 left out."""
    lines = [np.asarray(stroke, dtype=np.float64).reshape(-1, 2) for stroke in strokes if len(stroke)]
    if not lines:
        raise ValueError("strokes must have at least one point")
    everything = np.concatenate(lines)
    if not np.isfinite(everything).all():
        raise ValueError("strokes must be finite numbers")
    if np.abs(everything).max() > FARTHEST:
        raise ValueError(f"strokes must lie within {FARTHEST:g}, got {np.abs(everything).max():g}")
    low, span = everything.min(0), float(np.ptp(everything, axis=0).max())
    scale = SPAN / span if span > 0 else 0.0
    return [thinned((line - low) * scale) for line in lines]


def thinned(line: Floats, epsilon: float = EPSILON) -> Floats:
    """Ramer, Douglas and Peucker: the ends, and again and again the point that lies farthest off, beyond epsilon.

    >>> thinned(np.array([[0.0, 0], [5, 1], [10, 0], [10, 9]])).tolist()
    [[0.0, 0.0], [10.0, 0.0], [10.0, 9.0]]
    """
    keep = np.zeros(len(line), dtype=np.bool_)
    keep[[0, -1]] = True
    open_parts = [(0, len(line) - 1)]
    while open_parts:
        first, last = open_parts.pop()
        if last - first < 2:
            continue
        inner, along = line[first + 1 : last] - line[first], line[last] - line[first]
        length = float(np.hypot(*along))
        if length > 0:
            off = np.abs(inner[:, 0] * along[1] - inner[:, 1] * along[0]) / length
        else:
            off = np.hypot(inner[:, 0], inner[:, 1])
        if off.max() > epsilon:
            middle = first + 1 + int(off.argmax())
            keep[middle] = True
            open_parts += [(first, middle), (middle, last)]
    return line[keep]


def _line(canvas: Floats, start: Floats, end: Floats) -> None:
    """Wu's line: at every whole step of the longer axis two pixels share 1 by how near they are; the brighter stays."""
    steep = abs(end[1] - start[1]) > abs(end[0] - start[0])
    u0, v0, u1, v1 = (*start[::-1], *end[::-1]) if steep else (*start, *end)
    if u0 > u1:
        u0, v0, u1, v1 = u1, v1, u0, v0
    u = np.arange(round(u0), round(u1) + 1)
    slope = (v1 - v0) / (u1 - u0) if u1 > u0 else 0.0
    v = np.clip(v0 + slope * (u - u0), 0.0, len(canvas) - 1.0)
    below = np.minimum(v.astype(np.int64), len(canvas) - 2)
    u = np.clip(u, 0, len(canvas) - 1)
    for at, share in ((below, 1 - (v - below)), (below + 1, v - below)):
        place = (u, at) if steep else (at, u)  # canvas is [y, x]
        np.maximum.at(canvas, place, share)
