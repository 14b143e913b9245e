"""A metric over the epochs of runs; a run overfits once the metric falls on classes that are not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.plotting import COLORS, MARKERS, new_figure
from nearfar.report.curves import collect_points
from nearfar.training import Run

# splits that an epoch's log entry may have scores of, and their line styles
LINE_STYLES = {"train": ":", "validation": "-", "test": "--"}


def draw_overfitting(runs: Sequence[Path], *, metric: str = "recall@1") -> Any:
    """Draw a metric in percent, with a color for each run and a line style for each split that its log has scores of.

    A run logs the scores by which it selects its epoch, with data.validation=0.2 or select.by=test.
    """
    figure, (axes,) = new_figure(width=6.0)
    for number, path in enumerate(runs):
        entries = [
            {"epoch": entry["epoch"] + 1, **{name: entry.get(name) for name in LINE_STYLES}} for entry in _epochs(path)
        ]
        lines = {name: collect_points(entries, name, metric, factor=100.0) for name in LINE_STYLES}
        if not any(lines.values()):
            logged = sorted({key for entry in entries for name in LINE_STYLES for key in entry[name] or ()})
            remedy = (
                f"choose from {', '.join(logged)}" if logged else "train with data.validation=0.2 or select.by=test"
            )
            raise NearfarError(f"{path}: the log has no {metric} over epochs: {remedy}")
        color, marker = list(COLORS.values())[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        for name, points in lines.items():
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    LINE_STYLES[name],
                    color=color,
                    marker=marker,
                    markersize=3,
                    label=f"{path.name}, {name}",
                )
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="epoch", ylabel=f"{metric}, percent")
    axes.legend()
    return figure


def _epochs(path: Path) -> list[dict[str, Any]]:
    return [entry for entry in Run(path).log() if entry["kind"] == "epoch"]
