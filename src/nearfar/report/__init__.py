"""The report of a run: one HTML file with scores, examples, training curves and an embedding map.

`write_report` writes it; `search_examples`, `judge` and `confusions` give what it shows as plain values.
"""

from nearfar.report.examples import (
    Confusion,
    Found,
    Judged,
    confusions,
    judge,
    neighbors_of,
    search_examples,
    worst_queries,
)
from nearfar.report.page import write_report
from nearfar.report.tsne import tsne

__all__ = [
    "Confusion",
    "Found",
    "Judged",
    "confusions",
    "judge",
    "neighbors_of",
    "search_examples",
    "tsne",
    "worst_queries",
    "write_report",
]
