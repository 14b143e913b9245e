"""`nearfar bench table`: the results of a suite as Markdown, CSV, HTML or LaTeX.

Scores are in percent (in CSV from 0 to 1) with 95% intervals over seeds. Differences whose interval excludes zero are
bold; nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from nearfar.suites.columns import CellText, columns, paper_tables, quoted_names
from nearfar.suites.csv_table import as_csv
from nearfar.suites.peer import describe_peers
from nearfar.suites.results import Results
from nearfar.suites.suite import UNTRAINED, Suite
from nearfar.suites.summary import Block, omitted_data, summarize
from nearfar.suites.tuning import describe_choice, describe_tuning
from nearfar.validation import check_choice


@dataclass(frozen=True)
class TablePage:
    """The content of a page with tables.

    Attributes:
        title: title of the page.
        about: paragraphs about all tables.
        tables: title, headings, rows and notes (shown below the table) of each table.
    """

    title: str
    about: list[str]
    tables: list[tuple[str, list[str], list[list[CellText]], list[str]]]


def table(results: Results, style: str = "markdown") -> str:
    """Format the results of a suite; style is markdown, csv, html or latex."""
    check_choice("style", style, STYLES)
    return STYLES[style](results)


def page(results: Results) -> TablePage:
    """Return the content that Markdown, HTML and LaTeX share."""
    suite, omitted = results.suite, omitted_data(results)
    ids = {place["id"] for place in results.places}
    cells = [cell for cell in results.cells.values() if cell["id"] in ids]
    versions = sorted({f"nearfar {cell['nearfar']}, torch {cell['torch']}, {cell['machine']}" for cell in cells})
    codes = list(dict.fromkeys(str(cell["code"]) for cell in cells if "code" in cell))
    mirrors = [f"Reproduces {suite.mirrors.rstrip('.')}."] if suite.mirrors else []
    differs = [f"Differences from it: {suite.differs.rstrip('.')}."] if suite.differs else []
    about = [
        *mirrors,
        *differs,
        f"Seeds {', '.join(map(str, suite.seeds))}. Scores are percentages: mean ± half of the 95% interval (Student's "
        "t over n seeds). Differences are paired by seed, with their 95% interval, and bold if it excludes zero. "
        "Seconds are the training time of the median run.",
        *([f"Datasets that were not run: {', '.join(omitted)}."] if omitted else []),
        *_settings(suite, omitted),
        *_folds(suite),
        *describe_tuning(suite, results.tuned),
        *describe_peers(suite),
        *(f"{method.name}: {method.note}." for method in suite.methods if method.note),
        *([f"Made with {'; '.join(versions)}."] if versions else []),
        *([f"Code hashes: {', '.join(codes)}."] if codes else []),
        *(["The cells were made with different versions."] if len(versions) > 1 else []),
    ]
    return TablePage(suite.name, about, [_table(results, block) for block in summarize(results)])


def _settings(suite: Suite, omitted: list[str]) -> list[str]:
    parts = [("all cells", suite.settings)]
    parts += [(dataset.name, dataset.settings) for dataset in suite.data if dataset.name not in omitted]
    parts += [(method.name, method.settings) for method in suite.methods]
    parts.append(("all cells, from the command line", suite.override))
    texts = [f"{name}: {', '.join(settings)}" for name, settings in parts if settings]
    return [f"Settings: {'; '.join(texts)}."] if texts else []


def _folds(suite: Suite) -> list[str]:
    if suite.folds is None:
        return []
    return [
        f"One run for each of {suite.folds} contiguous class-disjoint folds of the training classes. A run holds "
        "out its fold and selects its epoch on it (Musgrave et al., ECCV 2020). Separated: mean of the test scores of "
        "these networks. Concatenated: score of their normalized embeddings, concatenated. Seconds are summed over "
        "folds."
    ]


def _table(results: Results, block: Block) -> tuple[str, list[str], list[list[CellText]], list[str]]:
    suite = results.suite
    title = block.title if suite.sweep_key is None else f"{block.title}, {suite.sweep_key} = {block.sweep}"
    table_columns = columns(suite, block)
    body = [[column.ours(row) for column in table_columns] for row in block.rows]
    body += [[column.quoted(name) for column in table_columns] for name in quoted_names(suite, block)]
    choice = describe_choice(suite, results.tuned, block.source, results.tried)
    notes = [*_notes(block), *_batch_sizes(block), *choice, *_paper_notes(suite, block)]
    return title, [column.head for column in table_columns], body, notes


def _paper_notes(suite: Suite, block: Block) -> list[str]:
    """Return notes on the paper's numbers and on how our setup differs from the paper's."""
    tables = list(dict.fromkeys(table.table for table in paper_tables(suite, block)))
    if not tables:
        return []
    lines = [f"Paper: {', '.join(tables)}, as printed, in percent."]
    if block.source.differs:
        lines.append(f"Differences from the paper: {block.source.differs.rstrip('.')}.")
    if quoted_names(suite, block):
        lines.append(
            "Rows marked quoted hold numbers that the paper quotes from other papers; we did not run these methods."
        )
    return lines


def _notes(block: Block) -> list[str]:
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
            lines.append(f"{row.method}: epochs were selected in different ways, by {' and '.join(row.selected_by)}")
    if block.mixed:
        first = next(row.method for row in block.rows if row.method != UNTRAINED and row.n)
        lines.append(
            f"Methods start from different networks. The row {UNTRAINED} shows the network of {first} for the seeds "
            f"that {first} has."
        )
    return lines


def _batch_sizes(block: Block) -> list[str]:
    """Return a list with a note on the most common batch size and the methods that use a different one.

    The list is empty if the batch sizes are unknown.
    """
    sizes: dict[int, list[str]] = {}
    for row in block.rows:
        if row.batch is not None:
            sizes.setdefault(row.batch, []).append(row.method)
    order = sorted(sizes, key=lambda size: -len(sizes[size]))
    rest = "".join(f"; {size} for {', '.join(sizes[size])}" for size in order[1:])
    return [f"Batch size {size}{rest}" for size in order[:1]]


def markdown(results: Results) -> str:
    """Format as Markdown."""

    def line(fields: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in fields) + " |"

    content = page(results)
    parts = [f"# {content.title}", *content.about]
    for title, head, body, below in content.tables:
        rows = [[f"**{field.text}**" if field.bold else field.text for field in fields] for fields in body]
        rule = "| --- |" + " ---: |" * (len(head) - 1)
        parts += [f"## {title}", "\n".join([line(head), rule, *map(line, rows)])]
        if below:
            parts.append("\n".join(f"- {text}" for text in below))
    return "\n\n".join(parts) + "\n"


def html(results: Results) -> str:
    """Format as a self-contained HTML page."""
    content = page(results)
    parts = [f"<h1>{escape(content.title)}</h1>", *(f"<p>{escape(text)}</p>" for text in content.about)]
    for title, head, body, below in content.tables:
        parts.append(f"<table>\n<caption>{escape(title)}</caption>")
        parts.append("<tr>" + "".join(f"<th>{escape(text)}</th>" for text in head) + "</tr>")
        for fields in body:
            texts = [f"<b>{escape(field.text)}</b>" if field.bold else escape(field.text) for field in fields]
            parts.append("<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>")
        parts.append("</table>")
        if below:
            parts.append("<ul>" + "".join(f"<li>{escape(text)}</li>" for text in below) + "</ul>")
    style = (
        "body{font-family:sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse;margin-top:2em}"
        "caption{font-weight:bold;text-align:left}"
        "td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}"
        "td:first-child,th:first-child{text-align:left}"
    )
    start = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(content.title)}</title>'
    return "\n".join([start, f"<style>{style}</style>", *parts, "</html>"]) + "\n"


def latex(results: Results) -> str:
    """Format as LaTeX tables, which need no packages."""
    content = page(results)
    parts = [f"% {' '.join(text.split())}" for text in (content.title, *content.about)]
    for title, head, body, below in content.tables:
        parts += ["\\begin{table}", f"\\caption{{{_tex(title)}}}", f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"]
        parts += ["\\hline", " & ".join(map(_tex, head)) + " \\\\", "\\hline"]
        for fields in body:
            texts = [f"\\textbf{{{_tex(field.text)}}}" if field.bold else _tex(field.text) for field in fields]
            parts.append(" & ".join(texts) + " \\\\")
        parts += ["\\hline", "\\end{tabular}", *(f"\\par {_tex(text)}" for text in below), "\\end{table}"]
    return "\n".join(parts) + "\n"


SPECIAL = {
    "\\": r"\textbackslash{}",
    **{text: f"\\{text}" for text in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "[": "{[}",
    "]": "{]}",
    "\n": " ",
}


def _tex(text: str) -> str:
    """Escape the special characters of LaTeX.

    >>> _tex("map@r_1 ± 5%")
    'map@r\\\\_1 $\\\\pm$ 5\\\\%'
    """
    return "".join(SPECIAL.get(character, character) for character in text)


STYLES: dict[str, Callable[[Results], str]] = {"markdown": markdown, "csv": as_csv, "html": html, "latex": latex}
