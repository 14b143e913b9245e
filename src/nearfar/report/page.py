"""The report: one HTML file with scores, search examples, errors, training curves, an embedding map and settings.

The file is self-contained. It contains no scripts and loads no other files; images are embedded as data URIs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.calibration.stored import Calibration
from nearfar.data.manifest import Manifest
from nearfar.formatting import settings_lines
from nearfar.metrics import Scores
from nearfar.report.curves import draw_curves
from nearfar.report.decisions import collect_decisions
from nearfar.report.embedding_map import choose_rows, compute_map, draw_map
from nearfar.report.examples import (
    find_confusions,
    find_neighbors,
    find_worst_queries,
    rank_queries,
    search_examples,
)
from nearfar.report.html import write_html
from nearfar.report.score_table import make_score_tables
from nearfar.report.thumbnails import Thumbnails
from nearfar.report.tiles import make_confusion_cards, make_query_rows
from nearfar.validation import check_embeddings

# Limits of the map, (samples, classes), chosen so that the marks or images on it can be told apart.
MARK_LIMITS, IMAGE_LIMITS = (1000, 16), (600, 12)
SECTIONS = {
    "scores": "Scores",
    "examples": "Search examples",
    "errors": "Errors",
    "decisions": "Decisions",
    "training": "Training",
    "map": "Embedding map",
    "settings": "Settings",
}


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
    calibration: Calibration | None = None,
    seed: int = 0,
) -> Path:
    """Write the report atomically and return its path. The same arguments give the same file.

    Args:
        path: The HTML file to write.
        title: Title of the page.
        lead: Plain text below the title; an empty line starts a new paragraph.
        scores: Scores by name; each name is a row in the table of scores. If empty, there is no table.
        curves: Log entries of runs, by name. A value that no entry contains is not drawn.
        data: The N samples to search and to draw on the map.
        embeddings: Embeddings of the samples, [N, d].
        settings: Settings of the run, nested or flat.
        footer: Plain text at the end, with paragraphs as in `lead`.
        queries: Number of example queries.
        neighbors: Number of neighbors shown for each query.
        proxies: One or K proxies for each of the C classes in `data.classes`, [C, d] or [C, K, d]. The map shows them
            as stars.
        calibration: Thresholds and probabilities of the model, see `nearfar.calibration`.
        seed: Seed of the random choice of queries and of the map.
    """
    check_embeddings("embeddings", embeddings)
    for name, count in (("queries", queries), ("neighbors", neighbors)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if proxies is not None and (
        proxies.ndim not in (2, 3) or len(proxies) != len(data.classes) or proxies.shape[-1] != embeddings.shape[1]
    ):
        shape = f"[{len(data.classes)}, {embeddings.shape[1]}] or [{len(data.classes)}, K, {embeddings.shape[1]}]"
        raise ValueError(
            f"proxies must have shape {shape}, with one or K proxies per class of data, got {list(proxies.shape)}"
        )
    thumbnails = Thumbnails(data)
    figures, more_figures = draw_curves(curves)
    tables = make_score_tables(scores)
    is_empty = {
        "scores": not tables,
        "decisions": calibration is None,
        "training": not figures and not more_figures,
        "settings": not settings,
    }
    return write_html(
        Path(path),
        "report/templates/report.html",
        title=title,
        lead=lead,
        footer=footer,
        sections={key: name for key, name in SECTIONS.items() if not is_empty.get(key, False)},
        samples=len(data),
        classes=len(np.unique(data.labels)),
        gallery=_gallery_size(data),
        tables=tables,
        examples=_collect_examples(data, embeddings, thumbnails, queries, neighbors, seed),
        errors=_collect_errors(data, embeddings, thumbnails, neighbors, seed),
        decisions=collect_decisions(calibration),
        curves=figures,
        more_curves=more_figures,
        runs=len(curves),
        has_means='opacity="0.35"' in figures + more_figures,
        map=_collect_map(data, embeddings, thumbnails, proxies, seed),
        settings=settings_lines(settings or {}),
    )


def _collect_examples(
    data: Manifest, embeddings: Tensor, thumbnails: Thumbnails, queries: int, neighbors: int, seed: int
) -> dict[str, Any]:
    results = search_examples(data, embeddings, queries=queries, neighbors=neighbors, seed=seed)
    return {
        "matches": sum(sum(result.is_match) for result in results),
        "neighbors": sum(len(result.is_match) for result in results),
        "rows": make_query_rows(data, results, thumbnails),
    }


def _collect_errors(
    data: Manifest, embeddings: Tensor, thumbnails: Thumbnails, neighbors: int, seed: int
) -> dict[str, Any]:
    ranked = rank_queries(data, embeddings, seed=seed)
    worst = find_neighbors(data, embeddings, find_worst_queries(data, ranked), neighbors=neighbors)
    return {
        "queries": len(ranked.rows),
        "count": int((ranked.first_match > 1).sum()),
        "rows": make_query_rows(data, worst, thumbnails),
        "confusions": make_confusion_cards(data, find_confusions(data, ranked), thumbnails),
    }


def _collect_map(
    data: Manifest, embeddings: Tensor, thumbnails: Thumbnails, proxies: Tensor | None, seed: int
) -> dict[str, Any]:
    points, classes = MARK_LIMITS if thumbnails.kind == "text" else IMAGE_LIMITS
    rows = choose_rows(data.labels, points=points, classes=classes, seed=seed)
    layout = compute_map(data, embeddings, rows, proxies=proxies, seed=seed)
    return {
        "samples": len(rows),
        "classes": len(np.unique(data.labels[rows])),
        "has_proxies": proxies is not None,
        "svg": draw_map(data, layout, thumbnails),
    }


def _gallery_size(data: Manifest) -> int:
    gallery = 0 if data.role is None else int((data.role == "gallery").sum())
    return gallery or len(data)
