"""The report of a run: one HTML file with scores, search examples, training curves and an embedding map.

`write_report` writes the file. `search_examples`, `rank_queries`, `find_worst_queries` and `find_confusions` return the
values that it shows.
"""

from nearfar.report.examples import (
    Confusion,
    QueryResult,
    RankedQueries,
    find_confusions,
    find_neighbors,
    find_worst_queries,
    rank_queries,
    search_examples,
)
from nearfar.report.page import write_report
from nearfar.report.tsne import tsne

__all__ = [
    "Confusion",
    "QueryResult",
    "RankedQueries",
    "find_confusions",
    "find_neighbors",
    "find_worst_queries",
    "rank_queries",
    "search_examples",
    "tsne",
    "write_report",
]
