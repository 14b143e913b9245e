"""Tables of scores for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearfar.formatting import counted, metric_title
from nearfar.metrics import Scores

HEADLINE, MAX_COLUMNS = ("map@r", "nmi", "ami", "f1"), 7


def make_score_tables(scores: Mapping[str, Scores]) -> list[dict[str, Any]]:
    """Return at most two tables with a row for each entry of `scores` and a column for each metric that all have.

    If there are several rows, the one with the best MAP@R is marked (without MAP@R, the one that is best in the first
    metric). If there are more than seven metrics, the first table has Recall@k, MAP@R, NMI, AMI and F1, and the second
    table has the others. If `scores` is empty, the list is empty.
    """
    if not scores:
        return []
    first = next(iter(scores.values()))
    metrics = [name for name in first if all(name in row for row in scores.values())]
    if not metrics:
        raise ValueError(f"scores must have at least one metric in common, but {', '.join(scores)} have none")
    key = "map@r" if "map@r" in metrics else metrics[0]
    best = max(scores, key=lambda name: scores[name][key]) if len(scores) > 1 else None
    head = [name for name in metrics if name.startswith("recall@") or name in HEADLINE]
    if len(metrics) <= MAX_COLUMNS or not head:
        head = metrics
    bold = f" The row with the best {metric_title(key)} is bold." if best is not None else ""
    tables = [_make_table(scores, head, best, f"Values in percent. {_describe_queries(scores)}.{bold}")]
    rest = [name for name in metrics if name not in head]
    return [*tables, _make_table(scores, rest, best, "Values in percent.")] if rest else tables


def _make_table(scores: Mapping[str, Scores], metrics: Sequence[str], best: str | None, caption: str) -> dict[str, Any]:
    return {
        "caption": caption,
        "metrics": [metric_title(name) for name in metrics],
        "rows": [
            {"name": name, "is_best": name == best, "cells": [_make_cell(row, metric) for metric in metrics]}
            for name, row in scores.items()
        ],
    }


def _make_cell(scores: Scores, metric: str) -> dict[str, str]:
    value = 100 * scores[metric]
    spread = f" ± {100 * scores.spread[metric]:.1f}" if metric in scores.spread else ""
    return {"text": f"{value:.1f}{spread}", "share": f"{min(max(value, 0.0), 100.0):.1f}"}


def _describe_queries(scores: Mapping[str, Scores]) -> str:
    """Describe the queries, gallery and distance: once if they are the same for all names, otherwise for each name."""
    texts = {
        name: counted(row.queries, "query", "queries")
        + (f" ({row.dropped:,} more dropped: no positive)" if row.dropped else "")
        + f", gallery of {row.gallery:,}, {row.distance}"
        + (", approximate" if row.approximation is not None else "")
        for name, row in scores.items()
    }
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())
