"""Line plots are complete, deterministic, and readable without color."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from nearfar.errors import NearfarError
from nearfar.plotting import (
    Style,
    draw_lines,
    draw_note,
    new_figure,
    new_line_figure,
    save,
    style_for,
    to_inline_svg,
    to_svg,
)


def plot(x: list[float], line: list[float], style: Style | None = None, **options: Any) -> Any:
    """A figure with one line, its axes drawn once so that positions are final."""
    figure, (axes,) = new_line_figure()
    draw_lines(axes, x, {"a": line}, {"a": style or Style("blue")}, title="t", x_label="x", y_label="y", **options)
    to_svg(figure)
    return axes


def test_consecutive_styles_differ_in_everything_and_no_two_are_equal() -> None:
    styles = [style_for(i) for i in range(28)]
    assert len({(each.color, each.marker, each.dash) for each in styles}) == 28
    assert len({(each.marker, each.dash) for each in styles[:8]}) == 8
    for one, other in pairwise(styles):
        assert one.color != other.color
        assert one.marker != other.marker
        assert one.dash != other.dash


def test_a_line_and_its_legend_have_the_same_dashes() -> None:
    def dashes(dash: int) -> list[str]:
        figure, (axes,) = new_line_figure()
        styles = {"a": Style("vermilion", "o", dash), "b": Style("blue")}
        draw_lines(axes, [1, 2], {"a": [1, 2], "b": [2, 1]}, styles, title="", x_label="", y_label="")
        return re.findall('stroke-dasharray: (.*?);[^"]*stroke: #d55e00', to_svg(figure))

    assert dashes(0) == []
    found = set()
    for dash in range(1, 8):
        line, sample = dashes(dash)
        assert line == sample
        found.add(line)
    assert len(found) == 7


def test_bars_reach_from_low_to_high_and_stay_inside() -> None:
    axes = plot([1, 2], [1.0, 2.0], bars={"a": [(-5.0, 3.0), (1.5, 9.0)]})
    (bars,) = axes.collections
    assert [tuple(segment[:, 1]) for segment in bars.get_segments()] == [(-5.0, 3.0), (1.5, 9.0)]
    low, high = axes.get_ylim()
    assert low < -5
    assert high > 9


def test_lines_with_bars_stand_beside_each_other() -> None:
    lines = {name: [1.0, 1.0] for name in "abc"}
    for log_x, x in ((False, [1.0, 3.0]), (True, [1.0, 100.0])):
        _, (axes,) = new_line_figure()
        styles = {name: style_for(i) for i, name in enumerate(lines)}
        bars = {name: [(0.0, 2.0), (0.0, 2.0)] for name in lines}
        draw_lines(axes, x, lines, styles, title="", x_label="", y_label="", log_x=log_x, bars=bars)
        firsts = [bars.get_segments()[0][0, 0] for bars in axes.collections]
        assert firsts == sorted(set(firsts))
        assert firsts[1] == pytest.approx(1.0)


def test_a_logarithmic_axis_puts_powers_at_equal_steps() -> None:
    def positions(axes: Any) -> list[float]:
        return axes.transData.transform(axes.lines[0].get_xydata())[:, 0].tolist()

    one, two, three = positions(plot([0.01, 0.1, 1], [1.0, 1.0, 1.0], log_x=True))
    assert abs((two - one) - (three - two)) < 0.2
    one, two, three = positions(plot([0.01, 0.1, 1], [1.0, 1.0, 1.0]))
    assert (three - two) > 5 * (two - one)


def test_ticks_are_the_values_of_x_and_round_values_of_y() -> None:
    axes = plot([0.1, 25, 400], [3.0, 20.0, 900.0], log_x=True, log_y=True)
    assert [each.get_text() for each in axes.get_xticklabels()] == ["0.1", "25", "400"]
    assert {"5", "10", "200"} <= {each.get_text() for each in axes.get_yticklabels()}


def test_a_constant_line_is_drawn() -> None:
    for value in (0.0, 3.0, -2.0):
        axes = plot([1, 2], [value, value])
        assert np.isfinite(axes.get_ylim()).all()
        assert axes.get_ylim()[0] < value < axes.get_ylim()[1]


def test_names_do_not_overlap_and_are_in_the_order_of_the_ends() -> None:
    lines = {f"line {n}": [1.0, 1.0 + n / 1000] for n in range(8)}
    figure, (axes,) = new_line_figure()
    draw_lines(
        axes, [1, 2], lines, dict.fromkeys(lines, Style("blue")), title="a < b", x_label="x", y_label="y", log_y=True
    )
    root = ElementTree.fromstring(to_svg(figure))
    names = {e.text: float(e.get("y", "")) for e in root.iter() if (e.text or "").startswith("line ")}
    assert sorted(names, key=lambda name: names[name]) == [f"line {n}" for n in reversed(range(8))]
    assert min(b - a for a, b in pairwise(sorted(names.values()))) > 9


def test_text_is_escaped_and_never_a_formula() -> None:
    figure, (axes,) = new_line_figure()
    draw_lines(axes, [1, 2], {"$<b>$": [1, 2], "c": [2, 3]}, {"$<b>$": Style("blue"), "c": Style("sky")},
               title="$a_b$ & c", x_label="x", y_label="y")  # fmt: skip
    draw_note(axes, "note <i>")
    texts = {each.text for each in ElementTree.fromstring(to_svg(figure)).iter() if each.tag.endswith("}text")}
    assert {"$<b>$", "c", "$a_b$ & c", "note <i>"} <= texts


def test_inline_svg_has_no_styles_and_its_own_ids() -> None:
    def inline(label: str) -> str:
        figure, (axes,) = new_figure(layout=None)
        axes.plot([0, 1, 2], [0, 2, 1], color="#000040", marker="o")
        return to_inline_svg(figure, label=label, classes={"#000040": "c0"})

    first, second = inline("<one>"), inline("two")
    assert inline("<one>") == first
    assert 'style="' not in first
    assert "<style" not in first
    assert 'class="c0"' in first
    assert "#000040" not in first
    assert 'aria-label="&lt;one&gt;"' in first
    ids = [set(re.findall(' id="(.*?)"', text)) for text in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, known in zip((first, second), ids, strict=True):
        assert set(re.findall('href="#(.*?)"', text)) <= known


def test_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    for suffix in ("svg", "png"):
        for name in "ab":
            save(plot([1, 2], [1.0, 2.0]).figure, tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    with pytest.raises(NearfarError, match=r"x\.pdf: plots are saved as \.svg or \.png"):
        save(plot([1, 2], [1.0, 2.0]).figure, tmp_path / "x.pdf")
