"""Strokes are rendered like the embedded drawings."""

from __future__ import annotations

import time

import numpy as np
import pytest
from numpy.typing import NDArray

from nearfar.data import load_sketches
from nearfar.serve.drawing import LEVELS, SPAN, render_strokes, simplify_strokes, thin_lines


def test_columns_of_a_flat_line_sum_to_one_as_in_the_data() -> None:
    flat = render_strokes([[[0, 0], [255, 40]]], 28)
    data = load_sketches()
    assert data.pixels is not None
    lines = data.pixels[data.labels == data.classes.index("line")].astype(int)
    flat_ones = lines[(lines > 80).any(2).sum(1) <= 8]
    for sums in (flat.astype(int).sum(0)[2:26], np.median(flat_ones.sum(1)[:, 6:22], axis=0)):
        assert abs(sums / 255 - 1).max() <= 0.34
    assert set(np.unique(flat)) <= {0, 85, 170, 255}


def test_drawing_starts_at_the_top_left_and_fills_the_side_as_in_the_data() -> None:
    data = load_sketches()
    assert data.pixels is not None
    some = data.pixels[::97]
    star = render_strokes([[[300, 500], [340, 420], [380, 500], [290, 450], [390, 450], [300, 500]]], 28)
    for share, drawing in ((0.99, some), (1.0, star[None])):
        assert (drawing[:, 0].max(1) > 0).mean() >= share
        assert (drawing[:, :, 0].max(1) > 0).mean() >= share
    assert star[:, 27].max() > 0
    small = render_strokes([[[3, 5], [3.4, 4.2]]], 28)
    large = render_strokes([[[300, 500], [340, 420]]], 28)
    assert np.array_equal(small, large)


def test_a_single_point_is_drawn() -> None:
    assert render_strokes([[[5, 5]]], 28)[0, 0] == 255


def test_thinning_keeps_the_shape() -> None:
    circle = np.array([[100 * np.cos(a), 100 * np.sin(a)] for a in np.linspace(0, 6, 400)])
    few = thin_lines([circle])[0]
    assert 10 < len(few) < 60
    assert np.abs(np.hypot(*few.T) - 100).max() < 1e-9
    back = thin_lines([np.array([[0.0, 0], [50, 0], [0, 0]])])[0]
    assert len(back) == 3


@pytest.mark.parametrize("strokes", [[], [[]], [[[0, float("nan")]]], [[[-1.7e308, 0], [1.7e308, 0]]]])
def test_invalid_strokes(strokes: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match="strokes must"):
        simplify_strokes(strokes)


Line = NDArray[np.float64]


def slow_thin(line: Line, epsilon: float = 2.0) -> Line:
    """Thin a line by recursion, as the algorithm is usually written."""
    if len(line) < 3:
        return line
    along, inner = line[-1] - line[0], line[1:-1] - line[0]
    length = float(np.hypot(*along))
    if length > 0:
        distance = np.abs(inner[:, 0] * along[1] - inner[:, 1] * along[0]) / length
    else:
        distance = np.hypot(inner[:, 0], inner[:, 1])
    if distance.max() <= epsilon:
        return line[[0, -1]]
    middle = 1 + int(distance.argmax())
    return np.concatenate([slow_thin(line[: middle + 1])[:-1], slow_thin(line[middle:])])


def slow_draw(canvas: Line, start: Line, end: Line) -> None:
    """Draw a line pixel by pixel."""
    is_steep = abs(end[1] - start[1]) > abs(end[0] - start[0])
    (u0, v0), (u1, v1) = (
        sorted([tuple(start[::-1]), tuple(end[::-1])]) if is_steep else sorted([tuple(start), tuple(end)])
    )
    for u in range(round(u0), round(u1) + 1):
        slope = (v1 - v0) / (u1 - u0) if u1 > u0 else 0.0
        v = min(max(v0 + slope * (u - u0), 0.0), len(canvas) - 1.0)
        below = min(int(v), len(canvas) - 2)
        for other, share in ((below, 1 - (v - below)), (below + 1, v - below)):
            pixel = (min(u, len(canvas) - 1), other) if is_steep else (other, min(u, len(canvas) - 1))
            canvas[pixel] = max(canvas[pixel], share)


@pytest.mark.parametrize("seed", range(20))
def test_same_as_a_slow_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, rng.integers(1, 6))
    steps = [rng.normal(0, 10, (size, 2)).cumsum(0) for size in sizes]
    strokes = [(line.round() if seed % 2 else line).tolist() for line in steps]
    every = np.concatenate([np.array(stroke) for stroke in strokes])
    scale = SPAN / max(np.ptp(every, axis=0).max(), 1e-9)
    lines = [slow_thin((np.array(stroke) - every.min(0)) * scale) for stroke in strokes]
    for one, other in zip(simplify_strokes(strokes), lines, strict=True):
        assert np.array_equal(one, other)
    canvas = np.zeros((29, 29))
    for line in lines:
        points = line * 28 / (SPAN + 1)
        for start, end in zip(points, points[1:] if len(points) > 1 else points, strict=False):
            slow_draw(canvas, start, end)
    levels = np.rint(canvas[:28, :28] * (LEVELS - 1)) * (255 // (LEVELS - 1))
    assert np.array_equal(render_strokes(strokes, 28), levels)


def test_a_large_drawing_takes_seconds() -> None:
    strokes = np.random.default_rng(0).uniform(0, 999, (50, 2000, 2)).tolist()
    start = time.process_time()
    render_strokes(strokes, 28)
    assert time.process_time() - start < 4, "15 s with a loop over the lines"
