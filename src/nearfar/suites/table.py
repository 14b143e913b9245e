"""`nearfar bench table`: the results of a suite as Markdown, CSV, HTML or LaTeX.

Scores in per cent (CSV: as they are) with 95% intervals over seeds; a difference is bold where its interval excludes
zero, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from nearfar.suites.columns import Text, columns, paper_tables, quoted_names
from nearfar.suites.csv_table import as_csv
from nearfar.suites.peer import told as peers_told
from nearfar.suites.results import Results
from nearfar.suites.suite import UNTRAINED, Suite
from nearfar.suites.summary import Block, left_out, summarize
from nearfar.suites.tune import told as tuning_told
from nearfar.suites.tune import told_of
from nearfar.validation import check_choice


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
    suite, blocks, unseen = results.suite, summarize(results), left_out(results)
    cells = [each for each in results.cells.values() if each["id"] in {place["id"] for place in results.places}]
    versions = sorted({f"nearfar {each['nearfar']}, torch {each['torch']}, {each['machine']}" for each in cells})
    codes = list(dict.fromkeys(str(each["code"]) for each in cells if "code" in each))
    mirrors = [f"Mirrors {suite.mirrors.rstrip('.')}."] if suite.mirrors else []
    differs = [f"Not as there: {suite.differs.rstrip('.')}."] if suite.differs else []
    about = [
        *mirrors,
        *differs,
        f"Seeds {', '.join(map(str, suite.seeds))}; per cent, mean ± half of the 95% interval (Student's t over n "
        "seeds); differences are paired by seed, with their 95% interval, bold where it excludes zero; "
        "seconds of training, the median run.",
        *([f"Left out: {', '.join(unseen)}."] if unseen else []),
        *_settings(suite, unseen),
        *_folds(suite),
        *tuning_told(suite, results.chosen),
        *peers_told(suite),
        *(f"{each.name}: {each.note}." for each in suite.methods if each.note),
        *([f"Made with {'; '.join(versions)}."] if versions else []),
        *([f"States of the code: {', '.join(codes)}."] if codes else []),
        *(["Cells were made with different versions."] if len(versions) > 1 else []),
    ]
    return Page(suite.name, about, [_table(results, block) for block in blocks])


def _settings(suite: Suite, unseen: list[str]) -> list[str]:
    parts = [("all cells", suite.settings)]
    parts += [(source.name, source.settings) for source in suite.data if source.name not in unseen]
    parts += [(method.name, method.settings) for method in suite.methods]
    parts.append(("all cells, above the others", suite.override))
    told = [f"{name}: {', '.join(settings)}" for name, settings in parts if settings]
    return [f"Settings of {'; of '.join(told)}."] if told else []


def _folds(suite: Suite) -> list[str]:
    if suite.folds is None:
        return []
    return [
        f"A run for each of {suite.folds} class-disjoint folds of the training classes, contiguous in their order, its "
        "epoch chosen on the fold (Musgrave et al., ECCV 2020). Separated: mean of the test scores of these networks. "
        "Concatenated: the score of their embeddings side by side, each of length 1. Seconds are of all folds."
    ]


def _table(results: Results, block: Block) -> tuple[str, list[str], list[list[Text]], list[str]]:
    suite = results.suite
    title = block.title if suite.sweep_key is None else f"{block.title}, {suite.sweep_key} = {block.sweep}"
    found = columns(suite, block)
    body = [[each.ours(row) for each in found] for row in block.rows]
    body += [[each.quoted(name) for each in found] for name in quoted_names(suite, block)]
    below = [*_below(block), *_batches(block), *told_of(suite, results.chosen, block.source), *_beside(suite, block)]
    return title, [each.head for each in found], body, below


def _beside(suite: Suite, block: Block) -> list[str]:
    """What the numbers of the paper are, and what is not as there."""
    tables = list(dict.fromkeys(each.table for each in paper_tables(suite, block)))
    if not tables:
        return []
    lines = [f"Paper: {', '.join(tables)}, as printed, in per cent."]
    if block.source.differs:
        lines.append(f"Not as in the paper: {block.source.differs.rstrip('.')}.")
    if quoted_names(suite, block):
        lines.append(
            "Rows that are quoted hold numbers of other papers as this paper repeats them, and nothing of ours."
        )
    return lines


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


def _batches(block: Block) -> list[str]:
    """How large the batches are; those of another size than most are named."""
    sizes: dict[int, list[str]] = {}
    for row in block.rows:
        if row.batch is not None:
            sizes.setdefault(row.batch, []).append(row.method)
    order = sorted(sizes, key=lambda size: -len(sizes[size]))
    rest = "".join(f"; of {size} for {', '.join(sizes[size])}" for size in order[1:])
    return [f"Batches of {size}{rest}" for size in order[:1]]


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


STYLES: dict[str, Callable[[Results], str]] = {"markdown": markdown, "csv": as_csv, "html": html, "latex": latex}
