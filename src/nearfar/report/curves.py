"""Training curves from run logs, as small SVG panels in the colors of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from nearfar.formatting import metric_title
from nearfar.plotting import DASHES, line_style, new_figure, to_inline_svg
from nearfar.report.html import render

Entry = Mapping[str, Any]
Point = tuple[float, float]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 200, 54, 14, 12, 26
MAX_POINTS, MIN_SMOOTHED = 240, 40
# Values that the log of a training step may contain besides the loss, with their titles.
STEP_VALUES = {
    "active_pairs": "Fraction of pairs with a gradient",
    "without_positives": "Fraction of anchors without a positive",
    "rank": "Effective rank of 64 embeddings",
    "spread": "Spread of 64 embeddings (0: all have the same direction)",
    "norm": "Mean norm of 64 embeddings",
}
# Placeholder colors for matplotlib, eight for lines and one for the grid. In the SVG, each of them is replaced with a
# CSS class, so that style.css sets the actual color.
LINE_COLORS = tuple(f"#0000{64 + i:02x}" for i in range(8))
GRID_COLOR = "#000001"
CLASSES = {**{color: f"c{i}" for i, color in enumerate(LINE_COLORS)}, GRID_COLOR: "grid"}


@dataclass(frozen=True)
class Line:
    """Values of a run as (step, value) points; `style` is the index of the line's color and dash pattern."""

    name: str
    points: Sequence[Point]
    style: int = 0


def draw_curves(curves: Mapping[str, Sequence[Entry]]) -> tuple[Markup, Markup]:
    """Draw the logs of runs as HTML figures.

    Losses of different runs may have different scales, so each run has its own panel for the loss. Each of the other
    values has one panel with all runs.

    Args:
        curves: Log entries of runs, by name.

    Returns:
        Figures of the loss, validation scores and learning rate; and figures of the other values (STEP_VALUES). Each is
        empty if none of its values were logged.
    """
    losses = [
        draw_panel(f"Loss of {name}", [Line(name, points, number)], is_noisy=True)
        for number, (name, entries) in enumerate(curves.items())
        if (points := collect_points(entries, "loss"))
    ]
    metrics = {
        key: None
        for entries in curves.values()
        for entry in entries
        if isinstance(entry.get("validation"), Mapping)
        for key in entry["validation"]
    }
    shared = [
        _draw_shared(curves, ("validation", key), f"Validation {metric_title(key)}, percent", factor=100.0)
        for key in metrics
    ]
    shared.append(_draw_shared(curves, ("lr",), "Learning rate"))
    others = [_draw_shared(curves, (key,), title, is_noisy=True) for key, title in STEP_VALUES.items()]
    return Markup("").join(losses + shared), Markup("").join(others)


def collect_points(entries: Iterable[Entry], *keys: str, factor: float = 1.0) -> list[Point]:
    """Return (step, factor * value) for the entries with a finite value, ordered by step.

    Args:
        entries: Entries of a log. For an entry without a step, the epoch is used as the step.
        keys: Keys that lead to the value in a nested entry.
        factor: Factor that values are multiplied by.

    >>> collect_points([{"step": 2, "loss": 3.0}, {"step": 4}, {"step": 6, "loss": float("nan")}], "loss")
    [(2.0, 3.0)]
    """
    points = []
    for entry in entries:
        value: Any = entry
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        step = entry.get("step", entry.get("epoch"))
        if _is_number(value) and _is_number(step):
            points.append((float(step), factor * float(value)))
    return sorted(points, key=lambda point: point[0])


def draw_panel(title: str, lines: Sequence[Line], *, is_noisy: bool = False) -> Markup:
    """Return the HTML of a panel with its title, and a legend if it has several lines.

    If `is_noisy`, a line with many points is drawn thin, with its running mean drawn over it.
    """
    ends = "; ".join(
        f"{line.name} from {_format(line.points[0][1])} to {_format(line.points[-1][1])}" for line in lines
    )
    last = _format(max(line.points[-1][0] for line in lines))
    svg = to_inline_svg(_draw(lines, is_noisy), label=f"{title}, until step {last}: {ends}", classes=CLASSES)
    legend = [(line.name, line.style % 8, " ".join(map(str, DASHES[line.style % 8]))) for line in lines]
    return render("report/templates/curve.html", title=title, svg=Markup(svg), legend=legend if len(lines) > 1 else [])


def thin_out(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most `limit` points by averaging groups of consecutive points."""
    size = math.ceil(len(points) / limit)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def smooth(points: Sequence[Point], width: int) -> list[Point]:
    """Return the running mean over about `width` points; the window shrinks at the ends, so that it stays centered."""
    result = []
    for i, (x, _) in enumerate(points):
        reach = min(width // 2, i, len(points) - 1 - i)
        window = points[i - reach : i + reach + 1]
        result.append((x, sum(y for _, y in window) / len(window)))
    return result


def _draw_shared(
    curves: Mapping[str, Sequence[Entry]],
    keys: tuple[str, ...],
    title: str,
    *,
    factor: float = 1.0,
    is_noisy: bool = False,
) -> Markup:
    lines = [
        Line(name, collect_points(entries, *keys, factor=factor), i) for i, (name, entries) in enumerate(curves.items())
    ]
    lines = [line for line in lines if line.points]
    return draw_panel(title, lines, is_noisy=is_noisy) if lines else Markup("")


def _draw(lines: Sequence[Line], is_noisy: bool) -> Any:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    # fixed margins keep panels aligned, and are faster than computing them from the labels
    figure, (axes,) = new_figure(width=WIDTH / 72, height=HEIGHT / 72, layout=None)
    axes.set_position((LEFT / WIDTH, BOTTOM / HEIGHT, (WIDTH - LEFT - RIGHT) / WIDTH, (HEIGHT - TOP - BOTTOM) / HEIGHT))
    figure.set_facecolor("none")
    axes.set_frame_on(False)
    axes.tick_params(length=0, labelsize=11)
    axes.tick_params(axis="x", pad=6)
    axes.grid(axis="y", color=GRID_COLOR, linewidth=1, clip_on=False)
    axes.set_axisbelow(True)
    steps, values = [], []
    for line in lines:
        points = thin_out(line.points)
        steps += [x for x, _ in points]
        values += [y for _, y in points]
        look = {"color": LINE_COLORS[line.style % 8], "clip_on": False, "solid_joinstyle": "round"}
        if is_noisy and len(points) >= MIN_SMOOTHED:
            axes.plot(*zip(*points, strict=True), linewidth=1, alpha=0.35, **look)
            points = smooth(points, len(points) // 12)
        marker = "o" if len(points) < 16 else None
        axes.plot(
            *zip(*points, strict=True),
            linestyle=line_style(line.style % 8),
            linewidth=2,
            marker=marker,
            markersize=5,
            markeredgewidth=0,
            **look,
        )
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    axes.set_ylim(low - pad if low - pad > 0 or low < 0 else 0.0, high + pad)
    first, last = min(steps), max(steps)
    axes.set_xlim((first, last) if last > first else (first - 1, first + 1))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(
        MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=True) if last > first else FixedLocator([first])
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _format(value)))
    return figure


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _format(value: float) -> str:
    """Format a number for an axis or a label.

    >>> [_format(x) for x in (0.0, 1234.0, 17200.0, 0.002, 0.25, 0.00015, 1e-05)]
    ['0', '1,234', '17,200', '0.002', '0.25', '1.5e-4', '1e-5']
    """
    if value and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
