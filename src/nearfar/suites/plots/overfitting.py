"""A metric over the epochs of runs: where it falls on classes that are not trained on, a run overfits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.report.curves import series
from nearfar.suites.line_plot import COLOURS
from nearfar.suites.plots.canvas import MARKERS, panels
from nearfar.training import Run

# what an epoch's entry of the log may hold, and how its line looks
LOOKS = {"train": ":", "validation": "-", "test": "--"}


def overfitting(runs: Sequence[Path], *, metric: str = "recall@1") -> Any:
    """In per cent, one color a run, one dash for each split that its log has scores of.

    A run logs the split that chooses its epoch: data.validation=0.2, or select.by=test.
    """
    figure, (axes,) = panels(width=6.0)
    for number, path in enumerate(runs):
        entries = [{"epoch": each["epoch"] + 1, **{name: each.get(name) for name in LOOKS}} for each in _epochs(path)]
        lines = {name: series(entries, name, metric, factor=100.0) for name in LOOKS}
        if not any(lines.values()):
            logged = sorted({key for each in entries for name in LOOKS for key in each[name] or ()})
            cure = f"it has {', '.join(logged)}" if logged else "train with data.validation=0.2 or select.by=test"
            raise NearfarError(f"{path}: its log has no {metric} over epochs: {cure}")
        ink, marker = list(COLOURS.values())[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        for name, points in lines.items():
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    LOOKS[name],
                    color=ink,
                    marker=marker,
                    markersize=3,
                    label=f"{path.name}, {name}",
                )
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="epoch", ylabel=f"{metric}, per cent")
    axes.legend()
    return figure


def _epochs(path: Path) -> list[dict[str, Any]]:
    return [entry for entry in Run(path).log() if entry["kind"] == "epoch"]
