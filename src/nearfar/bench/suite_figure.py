"""`nearfar bench figure`: a metric against the values of the sweep, one line a method, one panel a data set, as SVG."""

from __future__ import annotations

from html import escape

from nearfar.bench.line_plot import COLOURS, LEFT, Style, line_plot, svg
from nearfar.bench.suite_results import Results
from nearfar.bench.suite_summary import Block, Row, summarise
from nearfar.bench.suite_table import ON_TEST
from nearfar.checks import nearest
from nearfar.errors import NearfarError

MARKERS = ("circle", "square", "triangle", "diamond")


def figure(results: Results, *, x: str, metric: str) -> str:
    """Means over seeds as SVG; a method that lacks a cell at some value is named in its panel and not drawn."""
    suite = results.suite
    if suite.sweep_key != x:
        has = f"its sweep is {suite.sweep_key}" if suite.sweep_key else "it has no sweep"
        raise NearfarError(f"{suite.name}: there is no sweep of {x!r}, {has}")
    if metric not in suite.metrics:
        known = ", ".join(suite.metrics)
        raise NearfarError(f"{suite.name}: does not show {metric!r}{nearest(metric, suite.metrics)} Known: {known}")
    values = suite.sweep_values
    if len(values) < 2 or not all(isinstance(each, int | float) for each in values):
        raise NearfarError(f"{suite.name}: {x} has no two numbers to draw a line between, got {list(values)}")
    blocks = summarise(results)
    return svg([_panel(results, data.name, [b for b in blocks if b.data == data.name], metric) for data in suite.data])


def _panel(results: Results, data: str, blocks: list[Block], metric: str) -> str:
    suite = results.suite
    blocks = sorted(blocks, key=lambda block: float(block.sweep))
    rows: dict[str, list[Row]] = {}
    for block in blocks:
        for row in block.rows:
            rows.setdefault(row.method, []).append(row)
    colours = list(COLOURS)
    styles = {
        name: Style(colours[i % len(colours)], MARKERS[i // len(colours) % len(MARKERS)], dashed=i == 0)
        for i, name in enumerate(rows)
    }
    drawn = {name: each for name, each in rows.items() if all(row.n == row.expected for row in each)}
    absent = [name for name in rows if name not in drawn]
    note = f"not drawn, cells are missing: {', '.join(absent)}" if absent else ""
    noted = f'<text x="{LEFT}" y="36" font-size="11" fill="#a00">{escape(note)}</text>' if note else ""
    if not drawn:
        return f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{escape(data)}</text>\n{noted}'
    on_test = any(row.on_test for each in drawn.values() for row in each)
    plot = line_plot(
        [float(block.sweep) for block in blocks],
        {name: [100 * row.scores[metric].mean for row in each] for name, each in drawn.items()},
        styles,
        title=f"{data} ({ON_TEST})" if on_test else data,
        x_label=suite.sweep_key or "",
        y_label=f"{metric}, per cent, mean of {len(suite.seeds)} seeds",
    )
    return f"{plot}\n{noted}" if noted else plot
