"""Draw plots with matplotlib's object-oriented API. The same input gives a byte-identical file.

Every matplotlib plot in the package is drawn here or on axes created here. matplotlib is imported when the first plot
is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Literal
from xml.etree import ElementTree

from nearfar.errors import NearfarError
from nearfar.files import atomic

FORMATS = (".svg", ".png")
# The color-blind-safe palette of Okabe and Ito.
COLORS = {
    "blue": "#0072B2",
    "sky": "#56B4E9",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "orange": "#E69F00",
    "purple": "#CC79A7",
    "black": "#000000",
}
LINE_MARKERS = ("o", "s", "^", "D")
# Cycling through 5 markers and 7 colors gives 35 distinct combinations, because 5 and 7 have no common factor.
MARKERS = (*LINE_MARKERS, "v")
# Dash patterns: lengths of strokes and gaps in points. The empty pattern is a solid line.
DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3), (4, 2), (12, 4), (1, 2), (6, 2, 2, 2, 2, 2))
# Horizontal offset between the error bars of neighboring lines, and maximum offset between the first and the last line,
# as fractions of the x range.
DODGE, MAX_DODGE = 0.011, 0.065
# Write text as SVG text elements, not as paths, and do not parse "$" in names as math.
PARAMETERS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.parse_math": False,
    "lines.scale_dashes": False,
}
_LOCK = RLock()  # matplotlib's parameters are global, so only one thread may change them at a time


@dataclass(frozen=True)
class Style:
    """Style of a line: a key of COLORS, a matplotlib marker, and an index into DASHES."""

    color: str
    marker: str = "o"
    dash: int = 0


def style_for(number: int) -> Style:
    """Return the style of line `number`, counted from 0. Consecutive lines differ in color, marker and dashes."""
    colors = list(COLORS)
    return Style(colors[number % len(colors)], LINE_MARKERS[number % len(LINE_MARKERS)], number % len(DASHES))


def line_style(dash: int) -> str | tuple[int, tuple[int, ...]]:
    """Convert an index into DASHES to a matplotlib line style."""
    return (0, DASHES[dash]) if dash else "-"


def new_figure(
    panels: int = 1,
    *,
    rows: int = 1,
    width: float = 5.0,
    height: float = 4.0,
    layout: Literal["constrained"] | None = "constrained",
) -> tuple[Any, list[Any]]:
    """Create a figure with `rows` rows of `panels` panels each.

    Return the figure and the axes of each panel, row by row. `width` and `height` are the size of a panel in inches.
    """
    from matplotlib.figure import Figure

    with _parameters():
        figure = Figure(figsize=(width * panels, height * rows), layout=layout)
        return figure, list(figure.subplots(rows, panels, squeeze=False).flat)


def new_line_figure(panels: int = 1) -> tuple[Any, list[Any]]:
    """Create a figure for `draw_lines`, with space for a legend on the right of each panel.

    Return the figure and the axes of each panel.
    """
    return new_figure(panels, width=6.8, height=4.0)


def draw_lines(
    axes: Any,
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
) -> None:
    """Draw lines that share their x values. The legend lists them by their last value, highest first.

    Args:
        axes: The axes to draw on.
        x: The x values that all lines share. The axis has a tick at each of them.
        lines: A dict that maps the name of each line to its y values.
        styles: A dict that maps the name of each line to its style.
        title: Title of the panel.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        log_x: Whether the x axis is logarithmic.
        log_y: Whether the y axis is logarithmic.
        bars: A dict that maps the name of each line to its error bars, one pair (lowest, highest) per x value. If
            given, the lines are shifted sideways a little so that their bars do not hide each other.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    with _parameters():
        axes.set_xscale("log" if log_x else "linear")
        axes.set_yscale("log" if log_y else "linear")
        handles = {}
        for number, (name, values) in enumerate(lines.items()):
            style = styles[name]
            shared = {"color": COLORS[style.color], "linewidth": 1.6}
            positions = _dodge(x, number, len(lines), log_x) if bars else list(x)
            (handles[name],) = axes.plot(
                positions,
                values,
                marker=style.marker,
                markersize=5,
                linestyle=line_style(style.dash),
                label=name,
                **shared,
            )
            if bars and name in bars:
                low, high = ([pair[i] for pair in bars[name]] for i in (0, 1))
                limits = axes.vlines(positions, low, high, color=shared["color"], linewidth=1)
                limits.set_gid(f"bars-{number}")
                for ends in (low, high):
                    axes.plot(positions, ends, "_", color=shared["color"], markersize=5)
        formatter = FuncFormatter(lambda value, _: f"{value:g}")
        axes.set_xticks(list(x), [f"{value:g}" for value in x])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if log_y else MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(formatter)
        order = sorted(lines, key=lambda name: lines[name][-1], reverse=True)
        axes.legend(
            [handles[name] for name in order],
            order,
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            handlelength=4,
        )
        _label(axes, title, x_label, y_label)


def draw_note(axes: Any, text: str) -> None:
    """Write a note in red between the title and the plot."""
    with _parameters():
        axes.set_title(axes.get_title(loc="left"), loc="left", fontweight="bold", pad=18)
        axes.text(0, 1.02, text, transform=axes.transAxes, color="#a00000", fontsize=8, wrap=True)


def to_svg(figure: Any, *, salt: str = "nearfar") -> str:
    """Return a figure as an SVG string; `salt` determines the element ids."""
    buffer = io.StringIO()
    with _parameters({"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def check_format(path: Path) -> str:
    """Return the suffix of a file name; raise `NearfarError` unless it is .svg or .png."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise NearfarError(f"{path}: plots are saved as .svg or .png: use one of these suffixes")
    return suffix


def save(figure: Any, path: Path) -> None:
    """Write a figure to an .svg or .png file atomically."""
    suffix = check_format(path)
    with _parameters(), atomic(path) as draft:
        if suffix == ".svg":
            draft.write_text(to_svg(figure), encoding="utf-8")
        else:
            figure.savefig(draft, format="png", dpi=200, metadata={"Software": None})


def to_inline_svg(figure: Any, *, label: str, classes: Mapping[str, str]) -> str:
    """Return a figure as an SVG element for an HTML page whose CSS sets colors and fonts.

    Each CSS property in a `style` attribute is converted to an SVG attribute such as `fill`, because a
    Content-Security-Policy may forbid `style`. Of the properties of a text, only its anchor and the colors in `classes`
    are kept.

    Args:
        figure: The figure.
        label: Description for screen readers. It also determines the element ids, so it must differ between the figures
            on a page.
        classes: A dict that maps colors (in lower case) to CSS classes. Elements of such a color get the class and the
            color `currentColor`.
    """
    root = ElementTree.fromstring(to_svg(figure, salt=label))
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        if element.tag == "g" or element is root:
            element.attrib.pop("id", None)
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        styles = dict(
            part.strip().split(": ", 1) for part in element.attrib.pop("style", "").split(";") if part.strip()
        )
        for name, value in styles.items():
            if value.lower() in classes:
                element.set("class", classes[value.lower()])
                element.set(name, "currentColor")
            elif element.tag != "text" or name == "text-anchor":
                element.set(name, value)
        for name in ("d", "x", "y"):  # round coordinates to a tenth of a pixel
            if name in element.attrib:
                element.set(name, re.sub(r"\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", element.attrib[name]))
        element.tail = None
        element.text = element.text if element.text and element.text.strip() else None
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _label(axes: Any, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _dodge(x: Sequence[float], number: int, count: int, is_log: bool) -> list[float]:
    """Shift the x positions of one of `count` lines (`number`, counted from 0) so that error bars do not overlap.

    On a logarithmic axis (`is_log`), x is multiplied by a factor, so that all points move by the same distance.
    """
    gap = min(DODGE, MAX_DODGE / max(1, count - 1)) * (number - (count - 1) / 2)
    low, high = min(x), max(x)
    if is_log:
        return [value * (high / low) ** gap for value in x]
    return [value + gap * (high - low) for value in x]


@contextmanager
def _parameters(changes: Mapping[Any, Any] | None = None) -> Iterator[None]:
    import matplotlib

    with _LOCK, matplotlib.rc_context({**PARAMETERS, **(changes or {})}):
        yield
