"""Plot the compactness of the embedding space over epochs: mean cosines of proxies and of training samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.plotting import new_figure
from nearfar.report.curves import collect_points
from nearfar.suites.plots.epoch_lines import draw_run_lines, finish_axes, read_epochs

LINE_STYLES = {"proxies": "-", "samples": ":"}


def draw_compactness(runs: Sequence[Path]) -> Any:
    """Draw the mean cosine of all pairs of proxies and of all pairs of training samples, with a color for each run.

    Runs log these values if log_train=true. For a loss without proxies, only the line of the samples is drawn.
    """
    figure, (axes,) = new_figure(width=7.5)
    for number, path in enumerate(runs):
        entries = read_epochs(path)
        lines = {name: collect_points(entries, "compactness", name) for name in LINE_STYLES}
        if not any(lines.values()):
            raise NearfarError(f"{path}: the log has no compactness values for each epoch: train with log_train=true")
        draw_run_lines(axes, path, number, lines, LINE_STYLES)
    finish_axes(axes, "mean cosine of pairs")
    return figure
