"""Render the strokes of a pen in the style of the built-in dataset, whose drawings come from Quick, Draw!

The strokes are first simplified as in Quick, Draw!: moved to the top left corner, scaled so that the longer side is
255, and thinned by the Ramer-Douglas-Peucker algorithm with epsilon 2. Then they are drawn one pixel wide by Wu's
algorithm (SIGGRAPH 1991) and rounded to four gray levels. Wu's algorithm divides the intensity of each step along the
longer axis between two pixels. All this matches measurements on the built-in drawings: in a nearly horizontal line, the
intensities of each column sum to 1, and each drawing starts in the first row and column and fills the longer side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearfar.data.layouts.sketches import LEVELS

Line = NDArray[np.float64]
Ints = NDArray[np.int64]
Pixels = NDArray[np.uint8]
Strokes = Sequence[Sequence[Sequence[float]]]

SPAN, EPSILON = 255.0, 2.0
MAX_COORDINATE = 1e9
# Number of lines that are drawn at once. It limits the memory that a large drawing needs.
BLOCK = 20_000


def render_strokes(strokes: Strokes, side: int) -> Pixels:
    """Render strokes as a uint8 image [side, side], white on black.

    Args:
        strokes: A list of strokes; each is a list of points [x, y] in any unit, with y pointing down.
        side: Height and width of the image.

    >>> render_strokes([[[0, 0], [9, 0]]], 4)[0].tolist()
    [255, 255, 255, 255]
    """
    canvas = np.zeros((side + 1, side + 1))
    points = [stroke * side / (SPAN + 1) for stroke in simplify_strokes(strokes)]
    # A stroke of one point is drawn as a line from the point to itself.
    starts = np.concatenate([line[:-1] if len(line) > 1 else line for line in points])
    ends = np.concatenate([line[1:] if len(line) > 1 else line for line in points])
    for first in range(0, len(starts), BLOCK):
        _draw_lines(canvas, starts[first : first + BLOCK], ends[first : first + BLOCK])
    levels = np.rint(canvas[:side, :side] * (LEVELS - 1))
    return (levels * (255 // (LEVELS - 1))).astype(np.uint8)


def simplify_strokes(strokes: Strokes) -> list[Line]:
    """Move strokes to the top left corner, scale their longer side to 255, and drop needless points (`thin_lines`)."""
    lines = [np.asarray(stroke, dtype=np.float64).reshape(-1, 2) for stroke in strokes if len(stroke)]
    if not lines:
        raise ValueError("strokes must contain at least one point")
    points = np.concatenate(lines)
    if not np.isfinite(points).all():
        raise ValueError("strokes must have finite coordinates")
    if np.abs(points).max() > MAX_COORDINATE:
        largest = np.abs(points).max()
        raise ValueError(f"strokes must have coordinates of magnitude at most {MAX_COORDINATE:g}, got {largest:g}")
    low, span = points.min(0), float(np.ptp(points, axis=0).max())
    scale = SPAN / span if span > 0 else 0.0
    return thin_lines([(line - low) * scale for line in lines])


def thin_lines(lines: Sequence[Line], epsilon: float = EPSILON) -> list[Line]:
    """Remove points of lines [P, 2] by the Ramer-Douglas-Peucker algorithm.

    Keep both ends. If the point farthest from the straight line between them is farther than `epsilon`, keep it too and
    repeat for the parts on both sides of it. All parts of all lines are processed at once, because a client can send
    hundreds of thousands of points.

    >>> thin_lines([np.array([[0.0, 0], [5, 1], [10, 0], [10, 9]])])[0].tolist()
    [[0.0, 0.0], [10.0, 0.0], [10.0, 9.0]]
    """
    points, stops = np.concatenate(lines), np.cumsum([len(line) for line in lines])
    keep = np.zeros(len(points), dtype=np.bool_)
    first, last = np.concatenate([[0], stops[:-1]]), stops - 1
    keep[first] = keep[last] = True
    while len(first := first[is_open := last - first >= 2]):
        last = last[is_open]
        middle, distance = _farthest_points(points, first, last)
        is_split = distance > epsilon
        first, middle, last = first[is_split], middle[is_split], last[is_split]
        keep[middle] = True
        first, last = np.concatenate([first, middle]), np.concatenate([middle, last])
    return [points[start:stop][keep[start:stop]] for start, stop in zip([0, *stops[:-1]], stops, strict=True)]


def _farthest_points(points: Line, first: Ints, last: Ints) -> tuple[Ints, Line]:
    """For each i, find the point between the points first[i] and last[i] that is farthest from the line through them.

    If first[i] and last[i] are at the same position, distances are measured to this position.

    Args:
        points: Positions of all points [P, 2].
        first: Indices of the first points.
        last: Indices of the last points.

    Returns:
        The indices of the farthest points, and their distances.
    """
    counts = last - first - 1
    offsets = np.cumsum(counts) - counts
    part = np.repeat(np.arange(len(first)), counts)
    row = np.arange(len(part)) - offsets[part] + first[part] + 1
    inner, along = points[row] - points[first][part], (points[last] - points[first])
    length = np.hypot(along[:, 0], along[:, 1])
    across = np.abs(inner[:, 0] * along[part, 1] - inner[:, 1] * along[part, 0])
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(length[part] > 0, across / length[part], np.hypot(inner[:, 0], inner[:, 1]))
    largest = np.maximum.reduceat(distance, offsets)
    is_largest = np.flatnonzero(distance == largest[part])
    return row[is_largest[np.searchsorted(is_largest, offsets)]], largest


def _draw_lines(canvas: Line, starts: Line, ends: Line) -> None:
    """Draw lines from starts [N, 2] to ends [N, 2] on the canvas [y, x] by Wu's algorithm.

    Each step along the longer axis divides the intensity 1 between two pixels. If a pixel already has a higher
    intensity, it is not changed.
    """
    is_steep = np.abs(ends[:, 1] - starts[:, 1]) > np.abs(ends[:, 0] - starts[:, 0])
    # u is the coordinate along the longer axis, v the other one. Lines go from the smaller to the larger u.
    a, b = (np.where(is_steep[:, None], side[:, ::-1], side) for side in (starts, ends))
    is_backward = (a[:, 0] > b[:, 0])[:, None]
    (u0, v0), (u1, v1) = np.where(is_backward, b, a).T, np.where(is_backward, a, b).T
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(u1 > u0, (v1 - v0) / (u1 - u0), 0.0)
    low, high = np.rint(u0).astype(np.int64), np.rint(u1).astype(np.int64)
    counts = high - low + 1
    line = np.repeat(np.arange(len(counts)), counts)
    u = np.arange(len(line)) - (np.cumsum(counts) - counts - low)[line]
    v = np.clip(v0[line] + slope[line] * (u - u0[line]), 0.0, len(canvas) - 1.0)
    below = np.minimum(v.astype(np.int64), len(canvas) - 2)
    u = np.clip(u, 0, len(canvas) - 1)
    for row, share in ((below, 1 - (v - below)), (below + 1, v - below)):
        y, x = np.where(is_steep[line], u, row), np.where(is_steep[line], row, u)
        np.maximum.at(canvas, (y, x), share)
