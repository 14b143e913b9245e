"""A line plot as SVG text: axes, grid, lines with markers and error bars, labels at their ends. No library needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nearfar.report.curves import DASHES, ticks

# Okabe and Ito's colors, distinct for every kind of color vision
COLOURS = {
    "blue": "#0072B2",
    "sky": "#56B4E9",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "black": "#000000",
}
MARKERS = ("circle", "square", "triangle", "diamond")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 420, 64, 210, 44, 52
BESIDE, MOST_BESIDE = 4.0, 24.0  # from one line's bars to the next, and from the first line's to the last


@dataclass(frozen=True)
class Style:
    """How a line looks: a color by name, a marker (circle, square, triangle or diamond), and a number of DASHES."""

    color: str
    marker: str = "circle"
    dash: int = 0


def style_of(number: int) -> Style:
    """The style of a line by its number: neighbors differ in color, marker and dashes, so that print is enough."""
    colors = list(COLOURS)
    return Style(colors[number % len(colors)], MARKERS[number % len(MARKERS)], number % len(DASHES))


def line_plot(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    styles: Mapping[str, Style],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    bars: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> str:
    """One panel of WIDTH x HEIGHT as a group of SVG elements, values y against a common x.

    bars: (low, high) at each x, by line; lines then stand a little beside each other, so that none hides another's.
    """
    bars = bars or {}
    values = [y for line in lines.values() for y in line] + [y for bar in bars.values() for pair in bar for y in pair]
    low, high = min(values), max(values)
    if log_y:
        marks = _log_ticks(values)
        low, high = min(low, marks[0]), max(high, marks[-1])
    else:
        pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = low - pad, high + pad
        marks = ticks(low, high, 7)
    scale, scale_x = (math.log if log_y else float), (math.log if log_x else float)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    gap = min(BESIDE, MOST_BESIDE / max(1, len(lines) - 1)) if bars else 0.0
    edge = gap * len(lines) / 2
    first, last = scale_x(min(x)), scale_x(max(x))

    def across(value: float) -> float:
        return LEFT + edge + (scale_x(value) - first) / (last - first) * (right - LEFT - 2 * edge)

    def up(value: float) -> float:
        return bottom - (scale(value) - scale(low)) / (scale(high) - scale(low)) * (bottom - TOP)

    parts = [f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>']
    for tick in marks:
        y = up(tick)
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for value in x:
        parts.append(
            f'<line x1="{across(value):.1f}" x2="{across(value):.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#333"/>'
        )
        parts.append(f'<text x="{across(value):.1f}" y="{bottom + 20}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#333"/>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_label)}</text>')
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">{escape(y_label)}</text>'
    )
    ends = _spread({name: up(line[-1]) for name, line in lines.items()}, 15)
    for number, (name, line) in enumerate(lines.items()):
        style = styles[name]
        color = COLOURS[style.color]
        beside = gap * (number - (len(lines) - 1) / 2)
        points = [(across(a) + beside, up(b)) for a, b in zip(x, line, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        dash = f' stroke-dasharray="{DASHES[style.dash]}"' if style.dash else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        for (a, _), (bar_low, bar_high) in zip(points, bars.get(name, ()), strict=name in bars):
            parts.append(_bar(a, up(bar_low), up(bar_high), color))
        parts += [_marker(style.marker, a, b, color) for a, b in points]
        y = ends[name]
        parts.append(f'<polyline points="{right},{points[-1][1]:.1f} {right + 16},{y:.1f}" fill="none" stroke="#999"/>')
        sample = f'x1="{right + 18}" x2="{right + 48}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line {sample} stroke="{color}" stroke-width="2"{dash}/>')
        parts.append(_marker(style.marker, right + 33, y, color))
        parts.append(f'<text x="{right + 54}" y="{y + 4:.1f}">{escape(name)}</text>')
    return "\n".join(parts)


def svg(panels: Sequence[str]) -> str:
    """Panels side by side as an SVG file."""
    groups = "\n".join(f'<g transform="translate({i * WIDTH} 0)">\n{panel}\n</g>' for i, panel in enumerate(panels))
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}" viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" fill="#222">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{groups}\n</svg>\n'
    )


def _marker(kind: str, x: float, y: float, color: str) -> str:
    shapes = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>',
        "square": f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{color}"/>',
        "triangle": f'<path d="M{x - 5:.1f} {y + 4:.1f}h10l-5 -9z" fill="{color}"/>',
        "diamond": f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z" fill="{color}"/>',
    }
    return shapes[kind]


def _bar(x: float, low: float, high: float, color: str) -> str:
    path = f"M{x - 3:.1f} {low:.1f}h6M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {high:.1f}h6"
    return f'<path class="bar" d="{path}" fill="none" stroke="{color}"/>'


def _log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten around the values."""
    exponents = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    found = [m * 10.0**e for e in exponents for m in (1, 2, 5)]
    below = max(t for t in found if t <= min(values))
    above = min(t for t in found if t >= max(values))
    return [t for t in found if below <= t <= above]


def _spread(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """The same places moved apart to at least a gap, in their order, about their middle."""
    order = sorted(places, key=places.__getitem__)
    moved = [places[name] for name in order]
    for _ in range(200):
        for i in range(len(moved) - 1):
            overlap = gap - (moved[i + 1] - moved[i])
            if overlap > 0:
                moved[i] -= overlap / 2
                moved[i + 1] += overlap / 2
    return dict(zip(order, moved, strict=True))
