"""Scores: the result of an evaluation, down to each query."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearfar.metrics.comparison import Difference, compare_columns
from nearfar.metrics.inputs import Array, Ints
from nearfar.metrics.retrieval import Columns


@dataclass(frozen=True, eq=False)
class Scores:
    """Means over the queries that have a positive, with everything needed to look behind them.

    `values` maps metric names to numbers in [0, 1] ([-1, 1] for silhouette). `spread` is the standard
    deviation over seeds of the metrics that depend on one (nmi, ami, f1). `queries` have been averaged,
    `dropped` had no positive in the gallery and are in no mean. `approximation` is filled when a search index
    stood in for the exact ranking.
    """

    values: Mapping[str, float]
    queries: int
    dropped: int
    gallery: int
    distance: str
    spread: Mapping[str, float] = field(default_factory=dict)
    approximation: Mapping[str, float] | None = None
    rows: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    labels: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    columns: Columns = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> float:
        if name not in self.values:
            raise KeyError(f"{name!r} was not computed; there are {', '.join(self.values)}")
        return self.values[name]

    def table(self) -> str:
        """The values as aligned text, in per cent as papers print them.

        >>> print(Scores({"recall@1": 0.5}, queries=4, dropped=1, gallery=5, distance="cosine").table())
        metric    per cent
        recall@1     50.00
        4 queries (1 without a positive left out), gallery of 5, cosine
        """
        width = max(len(name) for name in ("metric", *self.values))
        lines = [f"{'metric':<{width}}  per cent"]
        for name, value in self.values.items():
            spread = f" ± {100 * self.spread[name]:.2f}" if name in self.spread else ""
            lines.append(f"{name:<{width}}  {100 * value:8.2f}{spread}")
        left_out = f" ({self.dropped} without a positive left out)" if self.dropped else ""
        lines.append(f"{self.queries} queries{left_out}, gallery of {self.gallery}, {self.distance}")
        if self.approximation is not None:
            lines.append("approximate; error measured on a sample: " + json.dumps(dict(self.approximation)))
        return "\n".join(lines)

    def to_json(self) -> str:
        """Values, spread and counts as a JSON object (per-query columns are not in it).

        >>> json.loads(Scores({"mrr": 1.0}, queries=1, dropped=0, gallery=2, distance="cosine").to_json())["values"]
        {'mrr': 1.0}
        """
        content: dict[str, Any] = {
            "values": dict(self.values),
            "spread": dict(self.spread),
            "queries": self.queries,
            "dropped": self.dropped,
            "gallery": self.gallery,
            "distance": self.distance,
        }
        if self.approximation is not None:
            content["approximation"] = dict(self.approximation)
        return json.dumps(content, indent=2, allow_nan=False)

    def per_query(self) -> dict[str, Array]:
        """One entry a counted query in each column: every retrieval metric, and what to look at when it is low.

        "query" is its row, "label" its label, "positives" R, "first" the rank of its best positive and
        "nearest" the gallery row that was ranked first (the picture it was taken for).
        """
        counts = ("positives", "first", "nearest")
        whole = {name: column.astype(np.int64) for name, column in self.columns.items() if name in counts}
        metrics = {name: column for name, column in self.columns.items() if name not in whole}
        return {"query": self.rows, "label": self.labels, **whole, **metrics}

    def per_class(self) -> dict[Any, dict[str, float]]:
        """For each class the number of its counted queries and the mean of every retrieval metric over them.

        With multi-hot labels the classes are the column numbers, and a query counts in each of its classes.
        """
        if self.labels.ndim == 2:
            owner, code = np.nonzero(self.labels)
            names: list[Any] = list(range(self.labels.shape[1]))
        else:
            unique, code = np.unique(self.labels, return_inverse=True)
            owner, names = np.arange(len(code)), unique.tolist()
        sizes = np.bincount(code, minlength=len(names))
        metrics = [name for name in self.columns if name in self.values]
        sums = {m: np.bincount(code, weights=self.columns[m][owner], minlength=len(names)) for m in metrics}
        return {
            name: {"queries": int(sizes[c])} | {m: float(sums[m][c] / sizes[c]) for m in metrics}
            for c, name in enumerate(names)
            if sizes[c]
        }

    def compare(
        self, other: "Scores", *, level: float = 0.95, resamples: int = 2000, seed: int = 0, by: str = "query"
    ) -> dict[str, Difference]:
        """Self minus other for each metric both have, with a paired bootstrap interval.

        Both must have evaluated the same queries. `by="query"` resamples queries; `by="class"` resamples
        whole classes, the honest choice when what matters is other classes than these (queries of a class are
        not independent). The interval is about the choice of test samples, not about training seeds.
        """
        if not np.array_equal(self.rows, other.rows) or not np.array_equal(self.labels, other.labels):
            raise ValueError(
                f"other must have scored the same queries to be compared: {len(self.rows)} queries here, "
                f"{len(other.rows)} there, or their labels differ"
            )
        if by not in ("query", "class"):
            raise ValueError(f"by must be 'query' or 'class', got {by!r}")
        shared = [name for name in self.columns if name in self.values and name in other.columns]
        if not shared:
            raise ValueError("other has no retrieval metric in common with these scores")
        groups = np.arange(len(self.rows))
        if by == "class":
            groups = np.unique(self.labels, axis=0 if self.labels.ndim == 2 else None, return_inverse=True)[1].ravel()
        differences = {name: self.columns[name] - other.columns[name] for name in shared}
        return compare_columns(differences, groups, level=level, resamples=resamples, seed=seed)
