"""The results of a suite as CSV."""

from __future__ import annotations

import math
from typing import Any

from nearfar.csv_files import format_csv
from nearfar.metrics.intervals import Interval
from nearfar.suites.columns import DETECTION, QUOTED, marks, paper_numbers, quoted_names
from nearfar.suites.paper import PrintedNumber
from nearfar.suites.results import Results
from nearfar.suites.summary import summarize

NAMES = (
    *("suite", "data", "form", "sweep_key", "sweep", "method", "baseline", "metric"),
    *("n", "expected", "mean", "low", "high"),
    *("difference_n", "difference", "difference_low", "difference_high", "clear", "paper", "paper_table"),
    *(f"{key}{part}" for key in DETECTION for part in ("", "_low", "_high")),
    *("seconds", "selected_by", "batch", "note", "missing"),
)


def as_csv(results: Results) -> str:
    """Format results as CSV, with one line per dataset, value of the sweep, method and metric.

    Scores are fractions from 0 to 1. The lines of methods that the paper only quotes contain the paper's numbers and
    the note "quoted".
    """
    suite = results.suite
    lines: list[dict[str, Any]] = []
    for block in summarize(results):
        place: dict[str, Any] = {
            "suite": suite.name,
            "data": block.data,
            "form": block.form,
            "sweep_key": suite.sweep_key,
            "sweep": block.sweep,
        }
        for row in block.rows:
            of_row = {
                "method": row.method,
                "baseline": row.baseline,
                "n": row.n,
                "expected": row.expected,
                "seconds": row.seconds,
                "selected_by": " ".join(row.selected_by),
                "batch": row.batch,
                "note": "; ".join(marks(row)),
                "missing": "; ".join(f"seed {seed}: {reason}" for seed, reason in row.missing.items()),
            }
            for key in DETECTION:
                of_row |= _interval_fields(row.detection.get(key), (key, f"{key}_low", f"{key}_high"))
            for metric in suite.metrics_of(block.source):
                score, difference = row.scores.get(metric), row.differences.get(metric)
                of_metric = {
                    "metric": metric,
                    **_interval_fields(score, ("mean", "low", "high")),
                    **_interval_fields(difference, ("difference", "difference_low", "difference_high")),
                    **({} if difference is None else {"difference_n": difference.n, "clear": difference.excludes_zero}),
                    **_paper(paper_numbers(suite, block, row.method, metric)),
                }
                lines.append({**place, **of_row, **of_metric})
        for name in quoted_names(suite, block):
            for metric in suite.metrics_of(block.source):
                numbers = paper_numbers(suite, block, name, metric, quoted=True)
                if numbers:
                    lines.append({**place, "method": name, "metric": metric, "note": QUOTED, **_paper(numbers)})
    return format_csv([NAMES, *([line.get(name, "") for name in NAMES] for line in lines)])


def _interval_fields(value: Interval | None, names: tuple[str, str, str]) -> dict[str, Any]:
    if value is None:
        return {}
    numbers = zip(names, (value.mean, value.low, value.high), strict=True)
    return {name: number for name, number in numbers if math.isfinite(number)}


def _paper(numbers: list[PrintedNumber]) -> dict[str, str]:
    values = "; ".join(f"{number.value / 100:.6g}" for number in numbers)
    return {"paper": values, "paper_table": "; ".join(number.table for number in numbers)} if numbers else {}
