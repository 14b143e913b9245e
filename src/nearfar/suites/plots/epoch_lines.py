"""Draw lines over the epochs of runs, from the epoch entries of their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfar.plotting import COLORS, MARKERS
from nearfar.training import Run

Point = tuple[float, float]


def read_epochs(path: Path) -> list[dict[str, Any]]:
    """Return the epoch entries of a run's log. In each entry, "step" is replaced with the epoch, counted from 1."""
    entries = [entry for entry in Run(path).log() if entry["kind"] == "epoch"]
    return [{**entry, "step": entry["epoch"] + 1} for entry in entries]


def draw_run_lines(
    axes: Any, path: Path, number: int, lines: Mapping[str, Sequence[Point]], styles: Mapping[str, str]
) -> None:
    """Draw the lines of one run in one color.

    Args:
        axes: The axes to draw on.
        path: The run directory. Its name is shown in the legend.
        number: Number of the run, which determines color and marker.
        lines: A dict that maps the name of each line to its points (epoch, value). A line without points is not drawn.
        styles: A dict that maps the name of each line to its line style.
    """
    color, marker = list(COLORS.values())[number % len(COLORS)], MARKERS[number % len(MARKERS)]
    for name, points in lines.items():
        if points:
            axes.plot(
                *zip(*points, strict=True),
                styles[name],
                color=color,
                marker=marker,
                markersize=3,
                label=f"{path.resolve().name}, {name}",
            )


def finish_axes(axes: Any, y_label: str) -> None:
    """Label the axes and add the legend. The legend is outside the plot, so that it does not hide lines."""
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="epoch", ylabel=y_label)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
