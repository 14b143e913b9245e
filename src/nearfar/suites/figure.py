"""`nearfar bench figure`: plot a metric over the values of a sweep.

The figure has a panel for each dataset and a line for each method. Lines show means over seeds, and error bars show the
95% confidence intervals of the means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearfar.errors import NearfarError
from nearfar.plotting import draw_lines, draw_note, new_line_figure, style_for, to_svg
from nearfar.spelling import suggest
from nearfar.suites.cells import check_names
from nearfar.suites.columns import ON_TEST
from nearfar.suites.results import Results
from nearfar.suites.suite import UNTRAINED
from nearfar.suites.summary import Block, Row, summarize

# the x axis is logarithmic if the largest swept value is at least this many times the smallest
MIN_LOG_RATIO = 50


def draw_figure(results: Results, *, x: str, metric: str, methods: Sequence[str] = ()) -> str:
    """Draw the results of a sweep and return the SVG text. The same results always give the same text.

    Args:
        results: The results of a suite with a sweep.
        x: The setting that the suite sweeps.
        metric: A metric of the suite.
        methods: The methods to draw. By default, all methods are drawn. Methods with missing results are left out, and
            a note lists them.
    """
    suite = results.suite
    names = (UNTRAINED, *(method.name for method in suite.methods))
    check_names("method", methods, names)
    if suite.sweep_key != x:
        sweep = f"it sweeps {suite.sweep_key}" if suite.sweep_key else "it has no sweep"
        raise NearfarError(f"{suite.name}: the suite does not sweep {x!r}: {sweep}")
    if metric not in suite.metrics:
        known = ", ".join(suite.metrics)
        raise NearfarError(
            f"{suite.name}: the suite has no metric {metric!r}{suggest(metric, suite.metrics)} Known: {known}"
        )
    values = suite.sweep_values
    if len(values) < 2 or not all(isinstance(value, int | float) for value in values):
        raise NearfarError(
            f"{suite.name}: a figure needs a sweep of at least two numeric values of {x}, got {list(values)}"
        )
    panels: dict[str, list[Block]] = {}
    for block in summarize(results):
        if metric in suite.metrics_of(block.source):
            panels.setdefault(block.title, []).append(block)
    if not panels:
        raise NearfarError(f"{suite.name}: no dataset with results has the metric {metric!r}")
    figure, all_axes = new_line_figure(len(panels))
    for axes, (data, blocks) in zip(all_axes, panels.items(), strict=True):
        _draw_panel(axes, results, data, blocks, metric, methods or names)
    return to_svg(figure)


def _draw_panel(
    axes: Any, results: Results, data: str, blocks: list[Block], metric: str, methods: Sequence[str]
) -> None:
    suite = results.suite
    blocks = sorted(blocks, key=lambda block: float(block.sweep))
    rows: dict[str, list[Row]] = {}
    for block in blocks:
        for row in block.rows:
            if row.method in methods:
                rows.setdefault(row.method, []).append(row)
    styles = {name: style_for(i) for i, name in enumerate(rows)}
    complete = {name: line for name, line in rows.items() if all(row.n == row.expected for row in line)}
    missing = [name for name in rows if name not in complete]
    if complete:
        on_test = any(row.on_test for line in complete.values() for row in line)
        values = [float(block.sweep) for block in blocks]
        scores = {name: [row.scores[metric] for row in line] for name, line in complete.items()}
        has_intervals = len(suite.seeds) > 1
        means = f", mean of {len(suite.seeds)} seeds and 95% interval" if has_intervals else ""
        bars = {name: [(100 * score.low, 100 * score.high) for score in line] for name, line in scores.items()}
        draw_lines(
            axes,
            values,
            {name: [100 * score.mean for score in line] for name, line in scores.items()},
            styles,
            title=f"{data} ({ON_TEST})" if on_test else data,
            x_label=suite.sweep_key or "",
            y_label=f"{metric}, percent{means}",
            log_x=min(values) > 0 and max(values) / min(values) >= MIN_LOG_RATIO,
            bars=bars if has_intervals else None,
        )
    else:
        axes.set_axis_off()
        axes.set_title(data, loc="left", fontweight="bold")
    if missing:
        draw_note(axes, f"not drawn, results are missing: {', '.join(missing)}")
