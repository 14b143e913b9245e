"""The report of a run: scores, what a search finds, training curves and an embedding map, in one HTML file.

Nothing in it comes from outside and nothing in it runs: no script, no font, no link; pictures are in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearfar import __version__
from nearfar.data.manifest import Manifest
from nearfar.files import atomic
from nearfar.metrics import Scores
from nearfar.report.curves import curve_figures
from nearfar.report.embedding_map import lay_out, map_rows, map_svg
from nearfar.report.examples import confusions, judge, neighbors_of, search_examples, worst_queries
from nearfar.report.sections import (
    confusion_cards,
    found_rows,
    legend,
    metric_title,
    paragraphs,
    score_table,
    settings_table,
)
from nearfar.report.thumbnails import Thumbnails
from nearfar.validation import check_embeddings

# points and classes of the map: what can still be told apart
DOTS, PICTURES = (1000, 16), (600, 12)
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(
    path: str | Path,
    *,
    title: str,
    lead: str,
    scores: Mapping[str, Scores],
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    data: Manifest,
    embeddings: Tensor,
    settings: Mapping[str, Any] | None = None,
    footer: str = "",
    queries: int = 12,
    neighbors: int = 8,
    proxies: Tensor | None = None,
    seed: int = 0,
) -> Path:
    """Write the page whole or not at all, and give its path.

    `embeddings` [N, d] are those of `data`, the samples to search and to map; `scores` maps names to rows of the table
    and `curves` names of runs to the entries of their logs (what an entry lacks is not drawn; no entries, no section).
    `proxies` [C, d] or [C, K, d], those of `data.classes`, are drawn into the map as stars. `lead` and `footer` are
    plain text, an empty line starts a paragraph. The same arguments give the same file.
    """
    check_embeddings("embeddings", embeddings)
    for name, count in (("queries", queries), ("neighbors", neighbors)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if proxies is not None and (
        proxies.ndim not in (2, 3) or len(proxies) != len(data.classes) or proxies.shape[-1] != embeddings.shape[1]
    ):
        want = f"[{len(data.classes)}, {embeddings.shape[1]}] or [{len(data.classes)}, K, {embeddings.shape[1]}]"
        raise ValueError(f"proxies must be {want}, one (or K) for each class of data, got {list(proxies.shape)}")
    pictures = Thumbnails(data)
    figures, more = curve_figures(curves, metric_title)
    sections = {
        "scores": ("Scores", score_table(scores) if scores else ""),
        "found": ("What it finds", _found(data, embeddings, pictures, queries, neighbors, seed)),
        "errors": ("Where it errs", _errors(data, embeddings, pictures, neighbors, seed)),
        "training": ("Training", _training(figures, more, len(curves))),
        "map": ("Embedding map", _map(data, embeddings, pictures, proxies, seed)),
        "settings": ("Settings", _settings(settings)),
    }
    shown = {key: part for key, part in sections.items() if part[1]}
    links = "".join(f'<a href="#{key}">{name}</a>' for key, (name, _) in shown.items())
    body = "\n".join(f'<section id="{key}"><h2>{name}</h2>{part}</section>' for key, (name, part) in shown.items())
    style = files("nearfar.report").joinpath("style.css").read_text(encoding="utf-8")
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title><style>
{style}</style></head><body>
<header><h1>{escape(title)}</h1>{paragraphs(lead, "lead")}<nav aria-label="Sections">{links}</nav></header>
<main>
{body}
</main>
<footer>{paragraphs(footer)}<p>Written by nearfar {__version__}.</p></footer>
</body></html>
"""
    path = Path(path)
    with atomic(path) as draft:
        # names of files may hold bytes that are no text
        draft.write_text(text, encoding="utf-8", errors="replace")
    return path


def _found(data: Manifest, embeddings: Tensor, pictures: Thumbnails, queries: int, neighbors: int, seed: int) -> str:
    found = search_examples(data, embeddings, queries=queries, neighbors=neighbors, seed=seed)
    right, shown = sum(sum(each.right) for each in found), sum(len(each.right) for each in found)
    classes = len(np.unique(data.labels))
    text = (
        f"Each query, left, searched {_gallery(data):,} samples of {classes:,} classes; the nearest come first. The "
        f"queries are drawn by chance, from classes spread over the alphabet: {right:,} of the {shown:,} neighbors "
        f"shown are right."
    )
    return f"<p>{text}</p>{legend()}{found_rows(data, found, pictures)}"


def _errors(data: Manifest, embeddings: Tensor, pictures: Thumbnails, neighbors: int, seed: int) -> str:
    judged = judge(data, embeddings, seed=seed)
    if not len(judged.rows):
        return "<p>No sample has another of its class to be found: there is nothing to judge.</p>"
    wrong = int((judged.first > 1).sum())
    what = f"{wrong:,} of {len(judged.rows):,} queries looked at have a nearest neighbor of another class"
    if not wrong:
        return (
            f"<p>Nowhere: none of {len(judged.rows):,} queries looked at has a nearest neighbor of another class.</p>"
        )
    rows = neighbors_of(data, embeddings, worst_queries(data, judged), neighbors=neighbors)
    return (
        f"<p>{what}. Below those whose first right neighbor comes last, at most one a class: hard, unusual, or "
        f"labeled wrongly.</p>{found_rows(data, rows, pictures)}"
        f"<h3>Classes taken for each other</h3><p>The share of the queries of both classes whose nearest neighbor is "
        f"of the other, with an example: a query, and what it was taken for.</p>"
        f"{confusion_cards(data, confusions(data, judged), pictures)}"
    )


def _training(figures: str, more: str, runs: int) -> str:
    if not figures and not more:
        return ""
    note = " Losses of different methods have different scales: compare shapes, not heights." if runs > 1 else ""
    means = " Thin lines are what was logged, thick ones a running mean." if 'class="raw' in figures + more else ""
    text = f"<p>Over training steps.{note}{means}</p>"
    fold = f'<details><summary>More from the log</summary><div class="curves">{more}</div></details>' if more else ""
    return f'{text}<div class="curves">{figures}</div>{fold}'


def _map(data: Manifest, embeddings: Tensor, pictures: Thumbnails, proxies: Tensor | None, seed: int) -> str:
    most = DOTS if pictures.look == "words" else PICTURES
    rows = map_rows(data.labels, points=most[0], classes=most[1], seed=seed)
    laid = lay_out(data, embeddings, rows, proxies=proxies, seed=seed)
    classes = len(np.unique(data.labels[rows]))
    chosen = "" if len(rows) == len(data) else f", chosen by chance out of {len(np.unique(data.labels)):,}"
    colors = "Colors repeat after eight classes; p" if classes > 8 else "P"
    stars = " Stars are proxies." if proxies is not None else ""
    text = (
        f"{len(rows):,} samples of {classes:,} classes{chosen}, laid out by t-SNE: neighbors stay neighbors, "
        f"distances between groups mean little. {colors}oint at a sample for its class.{stars}"
    )
    return f'<p>{text}</p><div class="mapbox" tabindex="0">{map_svg(data, laid, pictures)}</div>'


def _settings(settings: Mapping[str, Any] | None) -> str:
    if not settings:
        return ""
    return f"<details><summary>All settings of the run</summary>{settings_table(settings)}</details>"


def _gallery(data: Manifest) -> int:
    searched = 0 if data.role is None else int((data.role == "gallery").sum())
    return searched or len(data)
