"""The AccuracyCalculator of pytorch-metric-learning ("the peer"), based on `nearfar.evaluate`.

The metrics are exact and are computed in bounded memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nearfar.compat.arguments import refusal
from nearfar.metrics import Scores, evaluate
from nearfar.validation import check_choice

METRICS = {
    "AMI": "ami",
    "NMI": "nmi",
    "mean_average_precision": "map",
    "mean_average_precision_at_r": "map@r",
    "mean_reciprocal_rank": "mrr",
    "precision_at_1": "recall@1",  # at 1, precision and recall@1 are the same number
    "r_precision": "r-precision",
}
CLUSTERING = ("AMI", "NMI")


class AccuracyCalculator:
    """Compute the peer's metrics with Euclidean distances between embeddings, which are not normalized.

    Labels stay integers. The peer converts them to float32, which merges some class ids above 2^24. Equal distances are
    ranked by position. NMI and AMI are means over three k-means runs with fixed seeds. `k` must be None or
    "max_bin_count". The latter is not supported for mean_average_precision, because it would truncate the ranking.
    """

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = None,
        label_comparison_fn: Any = None,
        device: torch.device | str | None = None,
        knn_func: Any = None,
        kmeans_func: Any = None,
    ) -> None:
        others = {"label_comparison_fn": label_comparison_fn, "knn_func": knn_func, "kmeans_func": kmeans_func}
        for argument, value in others.items():
            if value is not None:
                raise refusal(self, argument, value)
        if k not in (None, "max_bin_count"):
            raise refusal(self, "k", k, "use None or 'max_bin_count'")
        if avg_of_avgs and return_per_class:
            raise ValueError("avg_of_avgs and return_per_class are both True: choose one")
        self.metrics = self._select_metrics(tuple(METRICS), include, exclude)
        if k is not None and "mean_average_precision" in self.metrics:
            raise refusal(self, "k", k, "use None with mean_average_precision, or exclude that metric")
        self.avg_of_avgs, self.return_per_class, self.k, self.device = avg_of_avgs, return_per_class, k, device

    def get_accuracy(
        self,
        query: Any,
        query_labels: Any,
        reference: Any = None,
        reference_labels: Any = None,
        ref_includes_query: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return a dictionary of the metrics, by the peer's names.

        Args:
            query: Embeddings of the queries [Q, d].
            query_labels: Class ids of the queries [Q].
            reference: Embeddings of the references [R, d]. By default, every query is searched among the others.
            reference_labels: Class ids of the references [R].
            ref_includes_query: Whether the references start with the queries, in the same order. Then a query is not
                compared with itself.
            include: Only compute these metrics. By default, all metrics of the calculator.
            exclude: Do not compute these metrics.
        """
        names = self._select_metrics(self.metrics, include, exclude)
        values: dict[str, Any] = {}
        groups = [name for name in names if name in CLUSTERING]
        ranked = [name for name in names if name not in CLUSTERING]
        options: dict[str, Any] = {"distance": "euclidean", "device": self.device}
        if groups:
            scores = evaluate(query, query_labels, metrics=[METRICS[name] for name in groups], **options)
            values |= {name: scores[METRICS[name]] for name in groups}
        if ranked:
            options["metrics"] = [METRICS[name] for name in ranked]
            if reference is None:
                scores = evaluate(query, query_labels, **options)
            else:
                ignore = [[row] for row in range(len(query))] if ref_includes_query else None
                scores = evaluate(reference, reference_labels, queries=(query, query_labels), ignore=ignore, **options)
            values |= {name: self._mean(scores, METRICS[name]) for name in ranked}
        return {name: values[name] for name in names}

    def _mean(self, scores: Scores, name: str) -> float | list[float]:
        if not (self.avg_of_avgs or self.return_per_class):
            return scores[name]
        _, kind = np.unique(scores.labels, return_inverse=True)
        per_class = np.bincount(kind, scores.columns[name]) / np.bincount(kind)
        return [float(value) for value in per_class] if self.return_per_class else float(per_class.mean())

    @staticmethod
    def _select_metrics(available: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> tuple[str, ...]:
        for name in (*include, *exclude):
            check_choice("include and exclude", name, METRICS)
        return tuple(name for name in available if (not include or name in include) and name not in exclude)
