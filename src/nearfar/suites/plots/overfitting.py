"""Plot a metric over the epochs of runs. A run overfits once the metric decreases on classes it does not train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.plotting import new_figure
from nearfar.report.curves import collect_points
from nearfar.suites.plots.epoch_lines import draw_run_lines, finish_axes, read_epochs

# splits for which a log may contain scores after each epoch, and their line styles
LINE_STYLES = {"train": ":", "validation": "-", "test": "--"}


def draw_overfitting(runs: Sequence[Path], *, metric: str = "recall@1") -> Any:
    """Draw a metric in percent over epochs, with a color for each run and a line style for each split.

    A run logs the scores that it uses to select its epoch: on validation classes (for example data.validation=0.2) or
    on the test split (select.by=test). With log_train=true, it also logs scores on training samples.
    """
    figure, (axes,) = new_figure(width=7.5)
    for number, path in enumerate(runs):
        entries = read_epochs(path)
        lines = {name: collect_points(entries, name, metric, factor=100.0) for name in LINE_STYLES}
        if not any(lines.values()):
            logged = sorted({key for entry in entries for name in LINE_STYLES for key in entry.get(name) or ()})
            remedy = (
                f"choose from {', '.join(logged)}" if logged else "train with data.validation=0.2 or select.by=test"
            )
            raise NearfarError(f"{path}: the log has no {metric} scores after each epoch: {remedy}")
        draw_run_lines(axes, path, number, lines, LINE_STYLES)
    finish_axes(axes, f"{metric}, percent")
    return figure
