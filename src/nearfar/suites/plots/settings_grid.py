"""Plot a metric over two settings: the setting that a suite sweeps, and a setting in which its methods differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError
from nearfar.plotting import new_figure
from nearfar.spelling import suggest
from nearfar.suites.columns import ON_TEST
from nearfar.suites.results import read_results
from nearfar.suites.suite import Suite
from nearfar.suites.summary import summarize


def draw_settings_grid(results: Path, *, x: str, y: str, metric: str = "recall@1") -> Any:
    """Draw heat maps of a metric (mean over seeds, in percent), with a panel for each dataset.

    A cell without results is empty. An asterisk marks a cell in which some seeds are missing.

    Args:
        results: Results file of a suite.
        x: The setting that the suite sweeps.
        y: A setting whose value differs between the methods. Methods that do not set it to a number are left out.
        metric: A metric of the suite.
    """
    content = read_results(results)
    suite = content.suite
    if suite.sweep_key != x:
        key = suite.sweep_key
        remedy = "use a suite with a sweep" if key is None else f"set x to {key}, which it sweeps"
        raise NearfarError(f"{results}: {suite.name} does not sweep {x!r}: {remedy}")
    if metric not in suite.metrics:
        raise NearfarError(f"{results}: the suite has no metric {metric!r}{suggest(metric, suite.metrics)}")
    row_values = _collect_values(suite, y)
    if not row_values:
        raise NearfarError(
            f"{results}: no method of {suite.name} sets {y!r} to a number: set y to a setting that has a number in "
            "some methods"
        )
    order, values = sorted(row_values, key=lambda name: row_values[name]), sorted(suite.sweep_values)
    grids: dict[str, dict[tuple[int, int], tuple[float, bool]]] = {}
    on_test: set[str] = set()
    for block in summarize(content):
        if metric not in suite.metrics_of(block.source):
            continue
        grid = grids.setdefault(block.title, {})
        if any(row.on_test for row in block.rows):
            on_test.add(block.title)
        for row in block.rows:
            if row.method in row_values and row.n:
                cell = order.index(row.method), values.index(block.sweep)
                grid[cell] = 100 * row.scores[metric].mean, row.n < row.expected
    if not grids:
        raise NearfarError(f"{results}: no dataset with results has the metric {metric!r}")
    figure, panels = new_figure(len(grids), width=4.6, height=4.0)
    for axes, (data, grid) in zip(panels, grids.items(), strict=True):
        image = np.full((len(order), len(values)), np.nan)
        for cell, (value, _) in grid.items():
            image[cell] = value
        heatmap = axes.imshow(image, cmap="cividis", origin="lower", aspect="auto")
        middle = (np.nanmin(image) + np.nanmax(image)) / 2 if grid else 0.0
        for (i, j), (value, is_partial) in grid.items():
            color = "white" if value < middle else "black"
            axes.text(j, i, f"{value:.1f}{'*' if is_partial else ''}", ha="center", va="center", color=color)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set_yticks(range(len(order)), [f"{row_values[name]:g}" for name in order])
        axes.set(xlabel=x, ylabel=y, title=f"{data}\n({ON_TEST})" if data in on_test else data)
        figure.colorbar(heatmap, ax=axes, label=f"{metric}, percent")
    return figure


def _collect_values(suite: Suite, key: str) -> dict[str, float]:
    """Return the number to which each method sets `key`, by method name. Methods that set no number are left out."""
    values = {}
    for method in suite.methods:
        for setting in method.settings:
            path, value = parse_setting(setting)
            if ".".join(path) == key and isinstance(value, int | float):
                values[method.name] = float(value)
    return values
