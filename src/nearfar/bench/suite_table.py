"""`nearfar bench table`: the results of a suite as Markdown, CSV, HTML or LaTeX.

Scores in per cent (CSV: as they are) with 95% intervals over seeds; a difference is bold where its interval excludes
zero, and nothing else is.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from nearfar.bench.suite import UNTRAINED, Suite
from nearfar.bench.suite_interval import Interval
from nearfar.bench.suite_results import Results
from nearfar.bench.suite_summary import Block, Row, summarise
from nearfar.checks import check_choice

ON_TEST = "as in the paper, chosen on the test set"
NONE = "–"


@dataclass(frozen=True)
class Text:
    """What stands in a field of a table."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Page:
    """A title, lines about all of it, and tables: a title, a head, rows, and lines below."""

    title: str
    about: list[str]
    tables: list[tuple[str, list[str], list[list[Text]], list[str]]]


def table(results: Results, style: str = "markdown") -> str:
    """The tables of a suite's results; style: markdown, csv, html or latex."""
    check_choice("style", style, STYLES)
    return STYLES[style](results)


def page(results: Results) -> Page:
    """What the styles for readers have in common."""
    suite, blocks = results.suite, summarise(results)
    cells = [each for each in results.cells.values() if each["id"] in {place["id"] for place in results.places}]
    versions = sorted({f"nearfar {each['nearfar']}, torch {each['torch']}, {each['machine']}" for each in cells})
    mirrors = [f"Mirrors {suite.mirrors.rstrip('.')}."] if suite.mirrors else []
    differs = [f"Not as there: {suite.differs.rstrip('.')}."] if suite.differs else []
    about = [
        *mirrors,
        *differs,
        f"Seeds {', '.join(map(str, suite.seeds))}; per cent, mean ± half of the 95% interval (Student's t over n "
        "seeds); differences are paired by seed, with their 95% interval, bold where it excludes zero.",
        *_settings(suite),
        *([f"Made with {'; '.join(versions)}."] if versions else []),
        *(["Cells were made with different versions."] if len(versions) > 1 else []),
    ]
    return Page(suite.name, about, [_table(results, block) for block in blocks])


def _settings(suite: Suite) -> list[str]:
    parts = [("all cells", suite.settings)]
    parts += [(source.name, source.settings) for source in suite.data]
    parts += [(method.name, method.settings) for method in suite.methods]
    parts.append(("all cells, above the others", suite.override))
    told = [f"{name}: {', '.join(settings)}" for name, settings in parts if settings]
    return [f"Settings of {'; of '.join(told)}."] if told else []


def _table(results: Results, block: Block) -> tuple[str, list[str], list[list[Text]], list[str]]:
    suite = results.suite
    compared = any(row.baseline for row in block.rows)
    title = block.data if suite.sweep_key is None else f"{block.data}, {suite.sweep_key} = {block.sweep}"
    kinds = ("", ", difference") if compared else ("",)
    scores = [f"{metric}{kind}" for metric in suite.metrics for kind in kinds]
    head = ["method", *(["against"] if compared else []), *scores, "seconds", "n"]
    body = []
    for row in block.rows:
        fields = [Text(f"{row.method} ({ON_TEST})" if row.on_test else row.method)]
        if compared:
            fields.append(Text(row.baseline or NONE))
        for metric in suite.metrics:
            fields.append(Text(_mean(row.scores[metric]) if row.n else "missing"))
            if compared:
                fields.append(_difference(row, metric))
        fields.append(Text(NONE if row.seconds is None else f"{row.seconds:.1f}"))
        fields.append(Text(f"{row.n}" if row.n == row.expected else f"{row.n} of {row.expected}"))
        body.append(fields)
    return title, head, body, _below(block)


def _below(block: Block) -> list[str]:
    lines = []
    for row in block.rows:
        if row.method == UNTRAINED:
            continue
        reasons: dict[str, list[int]] = {}
        for seed, reason in row.missing.items():
            reasons.setdefault(reason, []).append(seed)
        for reason, seeds in reasons.items():
            lines.append(f"Missing: {row.method}, seed {', '.join(map(str, seeds))}: {reason}")
        if len(row.selected_by) > 1:
            lines.append(f"{row.method}: epochs were chosen in different ways, by {' and '.join(row.selected_by)}")
    if block.mixed:
        first = next(row.method for row in block.rows if row.method != UNTRAINED and row.n)
        lines.append(f"Methods start from different networks; {UNTRAINED} is that of {first} where it has the seed.")
    return lines


def _mean(found: Interval) -> str:
    """In per cent.

    >>> _mean(Interval(0.5, 0.49, 0.51, 3)), _mean(Interval(0.5, -math.inf, math.inf, 1))
    ('50.00 ± 1.00', '50.00')
    """
    return f"{100 * found.mean:.2f}" + (f" ± {100 * found.half:.2f}" if found.n > 1 else "")


def _difference(row: Row, metric: str) -> Text:
    found = row.differences.get(metric)
    if found is None:
        return Text(NONE if row.baseline is None else "missing")
    text = f"{100 * found.mean:+.2f}"
    if found.n > 1:
        text += f" [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    if found.n != row.n:
        text += f" (n = {found.n})"
    return Text(text, bold=found.clear)


def markdown(results: Results) -> str:
    """As Markdown."""

    def line(fields: list[str]) -> str:
        return "| " + " | ".join(each.replace("|", "\\|").replace("\n", " ") for each in fields) + " |"

    whole = page(results)
    parts = [f"# {whole.title}", *whole.about]
    for title, head, body, below in whole.tables:
        rows = [[f"**{each.text}**" if each.bold else each.text for each in fields] for fields in body]
        rule = "| --- |" + " ---: |" * (len(head) - 1)
        parts += [f"## {title}", "\n".join([line(head), rule, *map(line, rows)])]
        if below:
            parts.append("\n".join(f"- {each}" for each in below))
    return "\n\n".join(parts) + "\n"


def html(results: Results) -> str:
    """As a page of HTML that needs nothing else."""
    whole = page(results)
    parts = [f"<h1>{escape(whole.title)}</h1>", *(f"<p>{escape(each)}</p>" for each in whole.about)]
    for title, head, body, below in whole.tables:
        parts.append(f"<table>\n<caption>{escape(title)}</caption>")
        parts.append("<tr>" + "".join(f"<th>{escape(each)}</th>" for each in head) + "</tr>")
        for fields in body:
            texts = [f"<b>{escape(each.text)}</b>" if each.bold else escape(each.text) for each in fields]
            parts.append("<tr>" + "".join(f"<td>{each}</td>" for each in texts) + "</tr>")
        parts.append("</table>")
        if below:
            parts.append("<ul>" + "".join(f"<li>{escape(each)}</li>" for each in below) + "</ul>")
    style = (
        "body{font-family:sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse;margin-top:2em}"
        "caption{font-weight:bold;text-align:left}"
        "td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}"
        "td:first-child,th:first-child{text-align:left}"
    )
    start = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(whole.title)}</title>'
    return "\n".join([start, f"<style>{style}</style>", *parts, "</html>"]) + "\n"


def latex(results: Results) -> str:
    """As tables of LaTeX, without packages."""
    whole = page(results)
    parts = [f"% {' '.join(each.split())}" for each in (whole.title, *whole.about)]
    for title, head, body, below in whole.tables:
        parts += ["\\begin{table}", f"\\caption{{{_tex(title)}}}", f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"]
        parts += ["\\hline", " & ".join(map(_tex, head)) + " \\\\", "\\hline"]
        for fields in body:
            texts = [f"\\textbf{{{_tex(each.text)}}}" if each.bold else _tex(each.text) for each in fields]
            parts.append(" & ".join(texts) + " \\\\")
        parts += ["\\hline", "\\end{tabular}", *(f"\\par {_tex(each)}" for each in below), "\\end{table}"]
    return "\n".join(parts) + "\n"


SPECIAL = {
    "\\": r"\textbackslash{}",
    **{each: f"\\{each}" for each in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "[": "{[}",
    "]": "{]}",
    "\n": " ",
}


def _tex(text: str) -> str:
    """With what is special to LaTeX written as text.

    >>> _tex("map@r_1 ± 5%")
    'map@r\\\\_1 $\\\\pm$ 5\\\\%'
    """
    return "".join(SPECIAL.get(each, each) for each in text)


def as_csv(results: Results) -> str:
    """As CSV: a line for each data, value of the sweep, method and metric, all digits, scores from 0 to 1."""
    suite = results.suite
    names = ["suite", "data", "sweep_key", "sweep", "method", "baseline", "metric", "n", "expected"]
    names += ["mean", "low", "high", "difference_n", "difference", "difference_low", "difference_high", "clear"]
    names += ["seconds", "selected_by", "note", "missing"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for block in summarise(results):
        for row in block.rows:
            for metric in suite.metrics:
                score, difference = row.scores.get(metric), row.differences.get(metric)
                start = [suite.name, block.data, suite.sweep_key, block.sweep, row.method, row.baseline, metric]
                missing = "; ".join(f"seed {seed}: {reason}" for seed, reason in row.missing.items())
                end = [row.seconds, " ".join(row.selected_by), ON_TEST if row.on_test else "", missing]
                clear = None if difference is None else difference.clear
                counts = [row.n, row.expected, *_numbers(score), None if difference is None else difference.n]
                writer.writerow([*start, *counts, *_numbers(difference), clear, *end])
    return out.getvalue()


def _numbers(found: Interval | None) -> list[Any]:
    if found is None:
        return [None, None, None]
    return [each if math.isfinite(each) else None for each in (found.mean, found.low, found.high)]


STYLES: dict[str, Callable[[Results], str]] = {"markdown": markdown, "csv": as_csv, "html": html, "latex": latex}
