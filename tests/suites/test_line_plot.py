"""Line plots stay inside their panel, and their lines can be told apart without color."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

from nearfar.suites.line_plot import HEIGHT, WIDTH, Style, line_plot, style_of, svg


def plot(x: list[float], line: list[float], **options: object) -> str:
    return line_plot(x, {"a": line}, {"a": Style("blue")}, title="t", x_label="x", y_label="y", **options)  # type: ignore[arg-type]


def test_neighbors_differ_in_everything_and_no_two_are_equal() -> None:
    styles = [style_of(i) for i in range(28)]
    assert len({(each.color, each.marker, each.dash) for each in styles}) == 28
    assert len({(each.marker, each.dash) for each in styles[:8]}) == 8
    for one, other in pairwise(styles):
        assert one.color != other.color
        assert one.marker != other.marker
        assert one.dash != other.dash


def test_a_line_and_its_sample_have_the_same_dashes() -> None:
    assert "stroke-dasharray" not in plot([1, 2], [1.0, 2.0])
    found = set()
    for dash in range(1, 8):
        panel = line_plot(
            [1, 2], {"a": [1.0, 2.0]}, {"a": Style("blue", "circle", dash)}, title="", x_label="", y_label=""
        )
        line, sample = re.findall('stroke-dasharray="(.*?)"', panel)
        assert line == sample
        found.add(line)
    assert len(found) == 7


def test_bars_reach_from_low_to_high_and_stay_inside() -> None:
    panel = plot([1, 2], [1.0, 2.0], bars={"a": [(-5.0, 3.0), (1.5, 9.0)]})
    ElementTree.fromstring(svg([panel]))
    spans = [(float(a), float(b)) for a, b in re.findall(r'class="bar" d="M\S+ (\S+)h6M\S+ \S+V(\S+?)M', panel)]
    assert len(spans) == 2
    assert all(0 < high < low < HEIGHT for low, high in spans)
    assert abs((spans[0][0] - spans[0][1]) / (spans[1][0] - spans[1][1]) - 8 / 7.5) < 0.01
    assert all(0 <= float(x) <= WIDTH for x in re.findall(r'class="bar" d="M(\S+) ', panel))


def test_a_logarithmic_axis_puts_powers_at_equal_steps() -> None:
    def places(panel: str) -> list[float]:
        return [float(x) for x in re.findall(r'<circle cx="(\S+)"', panel)[:3]]

    one, two, three = places(plot([0.01, 0.1, 1], [1.0, 1.0, 1.0], log_x=True))
    assert abs((two - one) - (three - two)) < 0.2
    one, two, three = places(plot([0.01, 0.1, 1], [1.0, 1.0, 1.0]))
    assert (three - two) > 5 * (two - one)


def test_a_constant_line_is_drawn() -> None:
    for value in (0.0, 3.0, -2.0):
        assert "nan" not in plot([1, 2], [value, value])
