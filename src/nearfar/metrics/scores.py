"""`Scores`, the result of an evaluation: means, and the metrics of each query."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nearfar.metrics.comparison import Difference, compare_columns
from nearfar.metrics.retrieval import Columns
from nearfar.validation import Array, Ints


@dataclass(frozen=True, eq=False)
class Scores(Mapping[str, float]):
    """A mapping from metric names to their values, which also contains the retrieval metrics of each query.

    The value of a retrieval metric is the mean over the queries. The values of nmi, ami and f1 are means over k-means
    seeds, and silhouette is the mean over the samples.

    The values are between 0 and 1, except that silhouette and ami can be negative. Two `Scores` are equal if their
    values are equal.

    Attributes:
        means: The value of each metric.
        queries: Number of queries that have a positive. Retrieval metrics are means over these queries. If only
            clustering metrics were computed, it is 0.
        dropped: Number of queries without a positive in the gallery. They are excluded from the means.
        gallery: Size of the gallery.
        distance: "cosine" or "euclidean".
        spread: Standard deviation over the k-means seeds, for nmi, ami and f1.
        approximation: If a search index was used, the mean error of each metric that was computed with it, on a sample
            of queries, and the number of these queries as "sample". Otherwise None.
        rows: Indices of the queries that have a positive.
        labels: Labels of these queries.
        columns: For each retrieval metric, an array with its value for each of these queries. The arrays "positives",
            "first" and "nearest" are included too (see `per_query`).

    >>> scores = Scores({"mrr": 0.5}, queries=4, dropped=1, gallery=5, distance="cosine")
    >>> dict(scores)
    {'mrr': 0.5}
    """

    means: Mapping[str, float]
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
        if name not in self.means:
            raise KeyError(f"{name!r} was not computed; these scores have {', '.join(self.means)}")
        return self.means[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.means)

    def __len__(self) -> int:
        return len(self.means)

    def table(self) -> str:
        """Return the means as aligned text, in percent.

        >>> print(Scores({"recall@1": 0.5}, queries=4, dropped=1, gallery=5, distance="cosine").table())
        metric    percent
        recall@1    50.00
        4 queries (1 more dropped: no positive), gallery of 5, cosine
        """
        width = max(len(name) for name in ("metric", *self))
        lines = [f"{'metric':<{width}}  percent"]
        for name, value in self.items():
            spread = f" ± {100 * self.spread[name]:.2f}" if name in self.spread else ""
            lines.append(f"{name:<{width}}  {100 * value:7.2f}{spread}")
        left_out = f" ({self.dropped} more dropped: no positive)" if self.dropped else ""
        noun = "query" if self.queries == 1 else "queries"
        lines.append(f"{self.queries} {noun}{left_out}, gallery of {self.gallery}, {self.distance}")
        if self.approximation is not None:
            lines.append("approximate; mean error on a sample of queries: " + json.dumps(dict(self.approximation)))
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return means, spread and counts as a JSON object, without the metrics of each query.

        >>> json.loads(Scores({"mrr": 1.0}, queries=1, dropped=0, gallery=2, distance="cosine").to_json())["values"]
        {'mrr': 1.0}
        """
        content: dict[str, Any] = {
            "values": dict(self),
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
        """Return every retrieval metric as an array with one value per query, for queries that have a positive.

        Further arrays help to analyze errors: "query" is the index of the query, "label" its label, "positives" its
        number of positives, "first" the position of its best positive, and "nearest" the gallery index of the sample
        at position 1.
        """
        counts = ("positives", "first", "nearest")
        counted = {name: column.astype(np.int64) for name, column in self.columns.items() if name in counts}
        metrics = {name: column for name, column in self.columns.items() if name not in counted}
        return {"query": self.rows, "label": self.labels, **counted, **metrics}

    def per_class(self) -> dict[Any, dict[str, float]]:
        """Return a dict for each class with the number of its queries and the mean of every retrieval metric over them.

        Queries without a positive are excluded. With multi-hot labels, a class is a column number, and a query is
        counted in each of its classes.
        """
        if self.labels.ndim == 2:
            owner, code = np.nonzero(self.labels)
            names: list[Any] = list(range(self.labels.shape[1]))
        else:
            unique, code = np.unique(self.labels, return_inverse=True)
            owner, names = np.arange(len(code)), unique.tolist()
        sizes = np.bincount(code, minlength=len(names))
        metrics = [name for name in self.columns if name in self]
        sums = {m: np.bincount(code, weights=self.columns[m][owner], minlength=len(names)) for m in metrics}
        return {
            name: {"queries": int(sizes[c])} | {m: float(sums[m][c] / sizes[c]) for m in metrics}
            for c, name in enumerate(names)
            if sizes[c]
        }

    def compare(
        self, other: "Scores", *, level: float = 0.95, resamples: int = 2000, seed: int = 0, by: str = "query"
    ) -> dict[str, Difference]:
        """Return self minus other for each retrieval metric that both have, with a paired bootstrap interval.

        The interval accounts for the choice of test samples, not for the variation between training seeds.

        Args:
            other: Scores of another model on the same queries.
            level: Confidence level of the interval.
            resamples: Number of bootstrap resamples.
            seed: Random seed of the resampling.
            by: "query" resamples queries. "class" resamples whole classes. Use "class" for conclusions about other
                classes, because queries of one class are not independent. With multi-hot labels, "class" resamples
                groups of queries with the same set of labels.
        """
        if not np.array_equal(self.rows, other.rows) or not np.array_equal(self.labels, other.labels):
            raise ValueError(
                "other must contain scores of the same queries with the same labels: these scores have "
                f"{len(self.rows)} queries, other has {len(other.rows)}"
            )
        if by not in ("query", "class"):
            raise ValueError(f"by must be 'query' or 'class', got {by!r}")
        shared = [name for name in self.columns if name in self and name in other.columns]
        if not shared:
            raise ValueError("other has no retrieval metric in common with these scores: use the same metrics")
        groups = np.arange(len(self.rows))
        if by == "class":
            groups = np.unique(self.labels, axis=0 if self.labels.ndim == 2 else None, return_inverse=True)[1].ravel()
        differences = {name: self.columns[name] - other.columns[name] for name in shared}
        return compare_columns(differences, groups, level=level, resamples=resamples, seed=seed)
