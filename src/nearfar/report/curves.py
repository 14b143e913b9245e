"""Training curves from the entries of run logs, as small SVG panels that follow the page's colors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Entry = Mapping[str, Any]
Point = tuple[float, float]
Scale = Callable[[float], float]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 200, 46, 12, 12, 26
POINTS, SMOOTH_FROM = 240, 40
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 2", "12 4", "1 2", "6 2 2 2 2 2")
# what else a step may log, and how it is called on the page
MORE = {
    "active_pairs": "Share of pairs that still move",
    "anchors_without_positives": "Share of anchors without a positive",
    "effective_rank": "Effective rank of the batch",
    "norm_mean": "Mean length of embeddings",
}


@dataclass(frozen=True)
class Line:
    """A run's values over steps."""

    name: str
    points: Sequence[Point]
    style: int = 0


def curve_figures(curves: Mapping[str, Sequence[Entry]], metric_title: Callable[[str], str]) -> tuple[str, str]:
    """Figures of loss, validation and learning rate, and figures of everything else; empty where nothing was logged.

    Every run has its own panel of loss. What is comparable, a metric or a rate, has one panel for all runs.
    """
    number = {name: i for i, name in enumerate(curves)}
    losses = [
        figure(f"Loss of {name}", [Line(name, points, number[name])], smooth=True)
        for name, entries in curves.items()
        if (points := series(entries, "loss"))
    ]
    metrics = {
        key: None
        for entries in curves.values()
        for entry in entries
        if isinstance(entry.get("validation"), Mapping)
        for key in entry["validation"]
    }
    shared = [
        _shared(curves, ("validation", key), f"Validation {metric_title(key)}, per cent", factor=100.0)
        for key in metrics
    ]
    shared.append(_shared(curves, ("lr",), "Learning rate"))
    return "".join(losses + shared), "".join(_shared(curves, (key,), title, smooth=True) for key, title in MORE.items())


def series(entries: Iterable[Entry], *keys: str, factor: float = 1.0) -> list[Point]:
    """(step, value) of the entries that have a finite number there, in order of step; without a step, the epoch.

    >>> series([{"step": 2, "loss": 3.0}, {"step": 4}, {"step": 6, "loss": float("nan")}], "loss")
    [(2.0, 3.0)]
    """
    points = []
    for entry in entries:
        value: Any = entry
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        at = entry.get("step", entry.get("epoch"))
        if _number(value) and _number(at):
            points.append((float(at), factor * float(value)))
    return sorted(points, key=lambda point: point[0])


def figure(title: str, lines: Sequence[Line], *, smooth: bool = False) -> str:
    """A panel with its title, and a legend where it has several lines; `smooth` adds running means to long ones."""
    ends = "; ".join(f"{line.name} from {_short(line.points[0][1])} to {_short(line.points[-1][1])}" for line in lines)
    last = _short(max(line.points[-1][0] for line in lines))
    label = escape(f"{title}, until step {last}: {ends}", quote=True)
    panel = _panel(lines, smooth)
    legend = "" if len(lines) == 1 else f'<div class="legend">{"".join(_key(line) for line in lines)}</div>'
    return (
        f'<figure class="curve"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{panel}</svg>{legend}</figure>'
    )


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within low..high, at most this many and at least two of them where the range is not empty.

    >>> ticks(0.13, 0.52)
    [0.2, 0.3, 0.4, 0.5]
    """
    span = high - low
    if not span > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    for step in (power * m for m in (1, 2, 2.5, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            break
    return [float(f"{step * k:.10g}") for k in range(first, last + 1)]


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most so many points, means of runs of equal length."""
    size = math.ceil(len(points) / most)
    runs = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in run) / len(run), sum(y for _, y in run) / len(run)) for run in runs]


def smoothed(points: Sequence[Point], width: int) -> list[Point]:
    """The mean of up to `width` points around each, fewer at the ends so that nothing is shifted."""
    result = []
    for i, (x, _) in enumerate(points):
        reach = min(width // 2, i, len(points) - 1 - i)
        run = points[i - reach : i + reach + 1]
        result.append((x, sum(y for _, y in run) / len(run)))
    return result


def _shared(
    curves: Mapping[str, Sequence[Entry]],
    keys: tuple[str, ...],
    title: str,
    *,
    factor: float = 1.0,
    smooth: bool = False,
) -> str:
    found = [Line(name, series(entries, *keys, factor=factor), i) for i, (name, entries) in enumerate(curves.items())]
    found = [line for line in found if line.points]
    return figure(title, found, smooth=smooth) if found else ""


def _panel(lines: Sequence[Line], smooth: bool) -> str:
    drawn = [thinned(line.points) for line in lines]
    xs, ys = ([point[i] for points in drawn for point in points] for i in (0, 1))
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = (low - pad if low - pad > 0 or low < 0 else 0.0), high + pad

    def across(x: float) -> float:
        return LEFT + ((x - left) / (right - left) if right > left else 0.5) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in ticks(low, high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for tick in ticks(left, right, 6):
        parts.append(f'<text x="{across(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{_short(tick)}</text>')
    for line, points in zip(lines, drawn, strict=True):
        if smooth and len(points) >= SMOOTH_FROM:
            parts.append(_line(points, line.style, "raw", across, up))
            points = smoothed(points, len(points) // 12)
        parts.append(_line(points, line.style, "main", across, up))
        if len(points) < 16:
            parts += [
                f'<circle class="c{line.style % 8}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.6"/>' for x, y in points
            ]
    return "".join(parts)


def _line(points: Sequence[Point], style: int, kind: str, across: Scale, up: Scale) -> str:
    path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
    dash = f' stroke-dasharray="{DASHES[style % 8]}"' if kind == "main" and style % 8 else ""
    return f'<polyline class="{kind} c{style % 8}" points="{path}"{dash}/>'


def _key(line: Line) -> str:
    dash = f' stroke-dasharray="{DASHES[line.style % 8]}"' if line.style % 8 else ""
    sample = f'<polyline class="main c{line.style % 8}" points="0,5 28,5"{dash}/>'
    return f'<span><svg viewBox="0 0 28 10" aria-hidden="true">{sample}</svg>{escape(line.name)}</span>'


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: float) -> str:
    """
    >>> [_short(x) for x in (0.0, 1234.0, 17200.0, 0.002, 0.25, 1e-05)]
    ['0', '1,234', '17,200', '0.002', '0.25', '1e-5']
    """
    if value and abs(value) < 1e-4:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
