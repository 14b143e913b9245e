"""A metric against two settings: the one that a suite sweeps, and one in which its methods differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nearfar.config.tree import parse_setting
from nearfar.errors import NearfarError
from nearfar.suites.columns import ON_TEST
from nearfar.suites.plots.canvas import panels
from nearfar.suites.results import read_results
from nearfar.suites.suite import Suite
from nearfar.suites.summary import summarize
from nearfar.validation import nearest


def settings_map(results: Path, *, x: str, y: str, metric: str = "recall@1") -> Any:
    """Means over seeds in per cent, a panel for each data; methods that do not set `y` are left out.

    A field without a run is empty; one that lacks some seeds has a `*` behind its number.
    """
    found = read_results(results)
    suite = found.suite
    if suite.sweep_key != x:
        raise NearfarError(f"{results}: {suite.name} sweeps {suite.sweep_key}, not {x!r}")
    if metric not in suite.metrics:
        raise NearfarError(f"{results}: does not show {metric!r}{nearest(metric, suite.metrics)}")
    rows = _values(suite, y)
    if not rows:
        raise NearfarError(f"{results}: no method of {suite.name} sets {y!r}")
    order, values = sorted(rows, key=lambda name: rows[name]), sorted(suite.sweep_values)
    grids: dict[str, dict[tuple[int, int], tuple[float, bool]]] = {}
    on_test: set[str] = set()
    for block in summarize(found):
        if metric not in suite.metrics_of(block.source):
            continue
        grid = grids.setdefault(block.title, {})
        if any(row.on_test for row in block.rows):
            on_test.add(block.title)
        for row in block.rows:
            if row.method in rows and row.n:
                place = order.index(row.method), values.index(block.sweep)
                grid[place] = 100 * row.scores[metric].mean, row.n < row.expected
    if not grids:
        raise NearfarError(f"{results}: no data that was run shows {metric!r}")
    figure, every = panels(len(grids), width=4.6, height=4.0)
    for axes, (data, grid) in zip(every, grids.items(), strict=True):
        image = np.full((len(order), len(values)), np.nan)
        for place, (value, _) in grid.items():
            image[place] = value
        drawn = axes.imshow(image, cmap="cividis", origin="lower", aspect="auto")
        middle = (np.nanmin(image) + np.nanmax(image)) / 2 if grid else 0.0
        for (i, j), (value, partial) in grid.items():
            ink = "white" if value < middle else "black"
            axes.text(j, i, f"{value:.1f}{'*' if partial else ''}", ha="center", va="center", color=ink)
        axes.set_xticks(range(len(values)), [f"{each:g}" for each in values])
        axes.set_yticks(range(len(order)), [f"{rows[name]:g}" for name in order])
        axes.set(xlabel=x, ylabel=y, title=f"{data}\n({ON_TEST})" if data in on_test else data)
        figure.colorbar(drawn, ax=axes, label=f"{metric}, per cent")
    return figure


def _values(suite: Suite, key: str) -> dict[str, float]:
    """What each method sets a key to, by its name."""
    values = {}
    for method in suite.methods:
        for setting in method.settings:
            path, value = parse_setting(setting)
            if ".".join(path) == key and isinstance(value, int | float):
                values[method.name] = float(value)
    return values
