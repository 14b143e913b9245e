"""`nearfar bench figure`: a metric against the values of the sweep, one line a method, one panel a data set, as SVG.

Means over seeds with their 95% intervals as bars.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nearfar.errors import NearfarError
from nearfar.suites.cells import check_named
from nearfar.suites.columns import ON_TEST
from nearfar.suites.line_plot import LEFT, line_plot, style_of, svg
from nearfar.suites.results import Results
from nearfar.suites.suite import UNTRAINED
from nearfar.suites.summary import Block, Row, summarize
from nearfar.validation import nearest

# from this ratio of the largest to the smallest value on, the axis of the sweep is logarithmic
LOG_FROM = 50


def figure(results: Results, *, x: str, metric: str, methods: Sequence[str] = ()) -> str:
    """As SVG, the same for the same results; a method that lacks a cell at some value is named and not drawn.

    methods: those to draw, or all.
    """
    suite = results.suite
    names = (UNTRAINED, *(each.name for each in suite.methods))
    check_named("method", methods, names)
    if suite.sweep_key != x:
        has = f"its sweep is {suite.sweep_key}" if suite.sweep_key else "it has no sweep"
        raise NearfarError(f"{suite.name}: there is no sweep of {x!r}, {has}")
    if metric not in suite.metrics:
        known = ", ".join(suite.metrics)
        raise NearfarError(f"{suite.name}: does not show {metric!r}{nearest(metric, suite.metrics)} Known: {known}")
    values = suite.sweep_values
    if len(values) < 2 or not all(isinstance(each, int | float) for each in values):
        raise NearfarError(f"{suite.name}: {x} has no two numbers to draw a line between, got {list(values)}")
    panels: dict[str, list[Block]] = {}
    for block in summarize(results):
        if metric in suite.metrics_of(block.source):
            panels.setdefault(block.title, []).append(block)
    if not panels:
        raise NearfarError(f"{suite.name}: no data that was run shows {metric!r}")
    return svg([_panel(results, data, blocks, metric, methods or names) for data, blocks in panels.items()])


def _panel(results: Results, data: str, blocks: list[Block], metric: str, methods: Sequence[str]) -> str:
    suite = results.suite
    blocks = sorted(blocks, key=lambda block: float(block.sweep))
    rows: dict[str, list[Row]] = {}
    for block in blocks:
        for row in (each for each in block.rows if each.method in methods):
            rows.setdefault(row.method, []).append(row)
    styles = {name: style_of(i) for i, name in enumerate(rows)}
    drawn = {name: each for name, each in rows.items() if all(row.n == row.expected for row in each)}
    absent = [name for name in rows if name not in drawn]
    note = f"not drawn, cells are missing: {', '.join(absent)}" if absent else ""
    noted = f'<text x="{LEFT}" y="36" font-size="11" fill="#a00">{escape(note)}</text>' if note else ""
    if not drawn:
        return f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{escape(data)}</text>\n{noted}'
    on_test = any(row.on_test for each in drawn.values() for row in each)
    values = [float(block.sweep) for block in blocks]
    found = {name: [row.scores[metric] for row in each] for name, each in drawn.items()}
    several = len(suite.seeds) > 1
    plot = line_plot(
        values,
        {name: [100 * each.mean for each in line] for name, line in found.items()},
        styles,
        title=f"{data} ({ON_TEST})" if on_test else data,
        x_label=suite.sweep_key or "",
        y_label=f"{metric}, per cent" + (f", mean of {len(suite.seeds)} seeds and 95% interval" if several else ""),
        log_x=min(values) > 0 and max(values) / min(values) >= LOG_FROM,
        bars={name: [(100 * each.low, 100 * each.high) for each in line] for name, line in found.items()}
        if several
        else None,
    )
    return f"{plot}\n{noted}" if noted else plot
