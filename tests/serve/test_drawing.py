"""Strokes are rendered like the embedded drawings."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.data import load_sketches
from nearfar.serve.drawing import render_strokes, simplify_strokes, thin_line


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
    few = thin_line(circle)
    assert 10 < len(few) < 60
    assert np.abs(np.hypot(*few.T) - 100).max() < 1e-9
    back = thin_line(np.array([[0.0, 0], [50, 0], [0, 0]]))
    assert len(back) == 3


@pytest.mark.parametrize("strokes", [[], [[]], [[[0, float("nan")]]], [[[-1.7e308, 0], [1.7e308, 0]]]])
def test_invalid_strokes(strokes: list[list[list[float]]]) -> None:
    with pytest.raises(ValueError, match="strokes must"):
        simplify_strokes(strokes)
