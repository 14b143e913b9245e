"""`nearfar bench figure`: plot a metric, or its gain over the baseline, over the values of a sweep.

The figure has a panel for each dataset and a line for each method. Lines show means over seeds, and error bars show the
95% confidence intervals of the means. For gains, these are means of the differences between runs with the same seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def draw_figure(results: Results, *, x: str, metric: str, methods: Sequence[str] = (), gain: bool = False) -> str:
    """Draw the results of a sweep and return the SVG text. The same results always give the same text.

    Args:
        results: The results of a suite with a sweep.
        x: The setting that the suite sweeps.
        metric: A metric of the suite.
        methods: The methods to draw. By default, all methods are drawn. Methods with missing results are left out, and
            a note lists them.
        gain: Draw the differences between the methods and their baselines. Baselines have no line. The untrained
            network has one only if `methods` names it.
    """
    suite = results.suite
    names = (UNTRAINED, *(method.name for method in suite.methods))
    compared = tuple(name for name in names if suite.baseline_of(name) is not None)
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
    if gain:
        if not compared:
            raise NearfarError(f"{suite.name}: a figure of gains needs a suite with a baseline, and it has none")
        names = tuple(name for name in methods or compared if name in compared and (methods or name != UNTRAINED))
        if not names:
            known = ", ".join(compared)
            raise NearfarError(f"{suite.name}: a baseline has no gain, got {', '.join(methods)}: name one of {known}")
    else:
        names = tuple(methods) or names
    panels: dict[str, list[Block]] = {}
    for block in summarize(results):
        if metric in suite.metrics_of(block.source):
            panels.setdefault(block.title, []).append(block)
    if not panels:
        raise NearfarError(f"{suite.name}: no dataset with results has the metric {metric!r}")
    figure, all_axes = new_line_figure(len(panels))
    for axes, (data, blocks) in zip(all_axes, panels.items(), strict=True):
        _draw_panel(axes, results, data, blocks, metric, names, gain=gain)
    return to_svg(figure)


def _draw_panel(
    axes: Any,
    results: Results,
    data: str,
    blocks: list[Block],
    metric: str,
    methods: Sequence[str],
    *,
    gain: bool,
) -> None:
    suite = results.suite
    blocks = sorted(blocks, key=lambda block: float(block.sweep))
    rows: dict[str, list[Row]] = {}
    for block in blocks:
        for row in block.rows:
            if row.method in methods:
                rows.setdefault(row.method, []).append(row)
    styles = {name: style_for(i) for i, name in enumerate(rows)}
    complete = {
        name: line
        for name, line in rows.items()
        if all(_count_seeds(row, metric, gain=gain) == row.expected for row in line)
    }
    missing = [name for name in rows if name not in complete]
    if complete:
        on_test = any(row.on_test for line in complete.values() for row in line)
        values = [float(block.sweep) for block in blocks]
        scores = {
            name: [(row.differences if gain else row.scores)[metric] for row in line] for name, line in complete.items()
        }
        quantity = f"{metric}, gain over {_baselines(complete.values())}\npoints" if gain else f"{metric}, percent"
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
            y_label=f"{quantity}{means}",
            log_x=min(values) > 0 and max(values) / min(values) >= MIN_LOG_RATIO,
            bars=bars if has_intervals else None,
        )
        if gain:
            axes.axhline(0, color="0.6", linewidth=1, zorder=0)
    else:
        axes.set_axis_off()
        axes.set_title(data, loc="left", fontweight="bold")
    if missing:
        draw_note(axes, f"not drawn, results are missing: {', '.join(missing)}")


def _count_seeds(row: Row, metric: str, *, gain: bool) -> int:
    """Return the number of seeds that a method has scores for or, with `gain`, both the method and its baseline."""
    if not gain:
        return row.n
    return row.differences[metric].n if metric in row.differences else 0


def _baselines(lines: Iterable[Sequence[Row]]) -> str:
    """Return the name of the common baseline of all lines, or "the baseline" if they have several."""
    names = {str(row.baseline) for line in lines for row in line}
    return names.pop() if len(names) == 1 else "the baseline"
