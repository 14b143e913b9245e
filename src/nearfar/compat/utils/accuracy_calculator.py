"""The AccuracyCalculator of pytorch-metric-learning.

By default, `nearfar.evaluate` computes the retrieval metrics, exactly and in bounded memory. With a custom neighbor
search, a custom label comparison, a value of `k` or labels of several columns, the metrics are computed from the labels
of the k nearest neighbors. So are the metrics that a subclass adds or overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfar.compat.utils import common_functions as c_f
from nearfar.compat.utils.clustering_metrics import CLUSTERING, clustering_score
from nearfar.compat.utils.exact_metrics import METRICS, evaluate_exactly
from nearfar.compat.utils.inference import FaissKMeans, FaissKNN
from nearfar.compat.utils.neighbor_metrics import (
    EQUALITY,
    LabelCounts,
    average,
    average_precision,
    equal_rows,
    get_label_match_counts,
    get_lone_query_labels,
    precision_at_k,
    r_precision,
    reciprocal_rank,
)

__all__ = ["CLUSTERING", "EQUALITY", "METRICS", "AccuracyCalculator", "get_label_match_counts", "get_lone_query_labels"]

PREFIX = "calculate_"


class AccuracyCalculator:
    """Compute the metrics of pytorch-metric-learning with Euclidean distances. Embeddings are not normalized.

    A subclass can add a metric X with a method `calculate_X(**kwargs)`, and override `requires_knn` and
    `requires_clustering` to name the metrics that need neighbors or clusters. Integer labels stay integers.
    pytorch-metric-learning converts them to float32, which merges some class ids above 2^24.

    Args:
        include: Only compute these metrics. By default, all.
        exclude: Do not compute these metrics.
        avg_of_avgs: Whether to average over the classes instead of over the queries.
        return_per_class: Whether to return a list with one value per class.
        k: The number of neighbors per query. "max_bin_count" means the size of the largest class, None all references.
        label_comparison_fn: A function that takes two tensors of labels and returns the mask of those that match. By
            default, labels match if they are equal.
        device: The device of the computation. By default, that of the queries.
        knn_func: A function like `FaissKNN`, which is also the default.
        kmeans_func: A function like `FaissKMeans`. By default, `FaissKMeans(niter=20)`.
    """

    def __init__(
        self,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = None,
        label_comparison_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
        device: torch.device | str | None = None,
        knn_func: Any = None,
        kmeans_func: Any = None,
    ) -> None:
        names = [name.removeprefix(PREFIX) for name in dir(self) if name.startswith(PREFIX)]
        self.original_function_dict = {name: getattr(self, PREFIX + name) for name in names}
        self.check_primary_metrics(include, exclude)
        self.original_function_dict = self.get_function_dict(include, exclude)
        self.curr_function_dict = self.get_function_dict()
        if avg_of_avgs and return_per_class:
            raise ValueError("avg_of_avgs and return_per_class are both True: choose one")
        if k not in (None, "max_bin_count") and not (type(k) is int and k > 0):
            raise ValueError(f"k must be an integer of at least 1, None or 'max_bin_count', got {k!r}")
        self.avg_of_avgs, self.return_per_class, self.k = avg_of_avgs, return_per_class, k
        self.device = None if device is None else torch.device(device)
        self.is_exact = knn_func is None and label_comparison_fn is None and k is None
        self.knn_func = FaissKNN() if knn_func is None else knn_func
        self.kmeans_func = kmeans_func
        self.label_comparison_fn = EQUALITY if label_comparison_fn is None else label_comparison_fn
        clusters = [name for name in self.get_curr_metrics() if name in self.requires_clustering()]
        if label_comparison_fn is not None and clusters:
            raise NotImplementedError(
                f"{', '.join(clusters)} cannot be combined with label_comparison_fn: exclude these metrics"
            )

    def requires_clustering(self) -> list[str]:
        """Return the metrics that need the clusters of the queries."""
        return list(CLUSTERING)

    def requires_knn(self) -> list[str]:
        """Return the metrics that need the neighbors of the queries."""
        return list(METRICS)

    def check_primary_metrics(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        """Raise an error for unknown metrics."""
        known = list(self.original_function_dict)
        for names in (include, exclude):
            if not isinstance(names, tuple | list):
                raise TypeError(f"include and exclude must be tuples or lists of names, got {names!r}")
            for name in names:
                if name not in known:
                    raise ValueError(f"include and exclude may only contain {', '.join(known)}, got {name!r}")

    def get_function_dict(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> dict[str, Any]:
        """Return the methods of the metrics in `include`, by default all, without those in `exclude`."""
        functions = self.original_function_dict
        return {name: f for name, f in functions.items() if (not include or name in include) and name not in exclude}

    def get_curr_metrics(self) -> list[str]:
        """Return the names of the metrics that are computed."""
        return list(self.curr_function_dict)

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
        """Return a dictionary that maps the names of the metrics in pytorch-metric-learning to their values.

        Args:
            query: Embeddings of the queries [Q, d].
            query_labels: Labels of the queries [Q], or [Q, n] with a label_comparison_fn.
            reference: Embeddings of the references [R, d]. By default, the references of a query are the other queries.
            reference_labels: Labels of the references.
            ref_includes_query: Whether the references start with the queries, in the same order. If so, a query is not
                compared with itself.
            include: Only compute these metrics. By default, all metrics of the calculator.
            exclude: Do not compute these metrics.
        """
        self.curr_function_dict = self.get_function_dict(include, exclude)
        if reference is None:
            reference, reference_labels, ref_includes_query = query, query_labels, True
        query, reference = (self.as_tensor(x).float() for x in (query, reference))
        query_labels, reference_labels = (self.as_tensor(x) for x in (query_labels, reference_labels))
        if len(query) != len(query_labels) or len(reference) != len(reference_labels):
            raise ValueError(
                f"embeddings and labels must have the same length, got {len(query)} and {len(query_labels)} for the "
                f"queries, {len(reference)} and {len(reference_labels)} for the references"
            )
        if ref_includes_query:
            check_begins_with(reference, reference_labels, query, query_labels)
        names = self.get_curr_metrics()
        builtin = [name for name in names if name in METRICS and self.is_builtin(name)]
        values: dict[str, Any] = {}
        if self.is_exact and builtin and query_labels.ndim == 1:
            scores = evaluate_exactly(query, query_labels, reference, reference_labels, ref_includes_query, builtin)
            values = {
                name: average(column, labels, self.avg_of_avgs, self.return_per_class)
                for name, (column, labels) in scores.items()
            }
        rest = {name: function for name, function in self.curr_function_dict.items() if name not in values}
        kwargs: dict[str, Any] = {
            "query": query,
            "reference": reference,
            "query_labels": query_labels,
            "reference_labels": reference_labels,
            "ref_includes_query": ref_includes_query,
            "label_comparison_fn": self.label_comparison_fn,
        }
        if any(name in self.requires_knn() for name in rest):
            kwargs |= self.find_neighbors(query, query_labels, reference, reference_labels, ref_includes_query)
        if any(name in self.requires_clustering() for name in rest):
            kwargs["cluster_labels"] = self.get_cluster_labels(**kwargs)
        values |= self._get_accuracy(rest, **kwargs)
        return {name: values[name] for name in names}

    def is_builtin(self, name: str) -> bool:
        """Return whether a metric is not overridden by a subclass."""
        return getattr(type(self), PREFIX + name) is getattr(AccuracyCalculator, PREFIX + name)

    def as_tensor(self, x: Any) -> Tensor:
        """Return an array or tensor as a tensor on the device of the calculator."""
        tensor = x.detach() if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
        return tensor if self.device is None else tensor.to(self.device)

    def find_neighbors(
        self, query: Tensor, query_labels: Tensor, reference: Tensor, reference_labels: Tensor, ref_includes_query: bool
    ) -> dict[str, Any]:
        """Find the neighbors of the queries and return them as keyword arguments for the methods `calculate_...`."""
        counts = get_label_match_counts(query_labels, reference_labels, self.label_comparison_fn)
        lone, kept = get_lone_query_labels(query_labels, counts, ref_includes_query, self.label_comparison_fn)
        if not kept.any():
            c_f.LOGGER.warning("None of the query labels are in the reference set.")
        k = self.determine_k(counts[1], len(reference), ref_includes_query)
        distances, indices = self.knn_func(query, k, reference, ref_includes_query)
        return {
            "label_counts": counts,
            "knn_labels": reference_labels[indices],
            "knn_distances": distances,
            "lone_query_labels": lone,
            "not_lone_query_mask": kept,
        }

    def determine_k(self, bin_counts: Tensor, num_reference_embeddings: int, ref_includes_query: bool) -> int:
        """Return the number of neighbors to find."""
        largest = int(bin_counts.max())
        if self.k == "max_bin_count":
            return largest - int(ref_includes_query)
        if self.k is None:
            return num_reference_embeddings - int(ref_includes_query)
        cut = [name for name in self.get_curr_metrics() if name in ("r_precision", "mean_average_precision_at_r")]
        if int(self.k) < largest and cut:
            c_f.LOGGER.warning(
                f"the values of {', '.join(cut)} are wrong, because k={self.k} is less than {largest}, the size of the "
                "largest class: use k='max_bin_count' or None"
            )
        return int(self.k)

    def get_cluster_labels(self, query: Tensor, query_labels: Tensor, **kwargs: Any) -> Any:
        """Return the cluster of each query. There are as many clusters as distinct labels."""
        kmeans = FaissKMeans(niter=20) if self.kmeans_func is None else self.kmeans_func
        return kmeans(query, len(torch.unique(query_labels.flatten())))

    def calculate_NMI(  # noqa: N802 - the name of the metric
        self, query_labels: Tensor, cluster_labels: Any, **kwargs: Any
    ) -> float:
        """Compute the normalized mutual information of labels and clusters."""
        return clustering_score("nmi", query_labels, cluster_labels)

    def calculate_AMI(  # noqa: N802 - the name of the metric
        self, query_labels: Tensor, cluster_labels: Any, **kwargs: Any
    ) -> float:
        """Compute the adjusted mutual information of labels and clusters."""
        return clustering_score("ami", query_labels, cluster_labels)

    def calculate_precision_at_1(self, **kwargs: Any) -> Any:
        """Compute the share of queries whose nearest neighbor has their label."""
        return self.mean_of(lambda same, relevant: precision_at_k(same, 1), **kwargs)

    def calculate_mean_average_precision_at_r(self, **kwargs: Any) -> Any:
        """Compute MAP@R: average precision over R neighbors. R is the number of references with the query's label."""
        return self.mean_of(lambda same, relevant: average_precision(same, relevant, at_r=True), **kwargs)

    def calculate_mean_average_precision(self, **kwargs: Any) -> Any:
        """Compute the mean average precision of the k neighbors."""
        return self.mean_of(lambda same, relevant: average_precision(same, relevant, at_r=False), **kwargs)

    def calculate_mean_reciprocal_rank(self, **kwargs: Any) -> Any:
        """Compute the mean of 1 / (rank of the first neighbor with the query's label), which is 0 if there is none."""
        return self.mean_of(lambda same, relevant: reciprocal_rank(same), **kwargs)

    def calculate_r_precision(self, **kwargs: Any) -> Any:
        """Compute the share of matches among R neighbors. R is the number of references with the query's label."""
        return self.mean_of(r_precision, **kwargs)

    def mean_of(
        self,
        metric: Callable[[Tensor, Tensor], Tensor],
        *,
        knn_labels: Tensor,
        query_labels: Tensor,
        not_lone_query_mask: Tensor,
        label_counts: LabelCounts,
        ref_includes_query: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Average a metric over the queries whose label matches at least one reference.

        `metric` takes the mask of neighbors that match the query [Q, k] and the number of matching references [Q].
        """
        if not not_lone_query_mask.any():
            return [float("nan")] * len(label_counts[0]) if self.return_per_class else float("nan")
        labels, neighbors = query_labels[not_lone_query_mask], knn_labels[not_lone_query_mask]
        same = self.label_comparison_fn(labels[:, None], neighbors)
        kinds, counts = (torch.as_tensor(part, device=labels.device) for part in label_counts)
        relevant = counts[equal_rows(labels, kinds).int().argmax(1)] - int(ref_includes_query)
        return average(metric(same, relevant), labels, self.avg_of_avgs, self.return_per_class)

    def _get_accuracy(self, function_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {name: function(**kwargs) for name, function in function_dict.items()}

    def description(self) -> str:
        """Return "avg_of_avgs" if the metrics are averaged over classes, else an empty string."""
        return "avg_of_avgs" if self.avg_of_avgs else ""


def check_begins_with(reference: Tensor, reference_labels: Tensor, query: Tensor, query_labels: Tensor) -> None:
    """Raise an error unless the references begin with the queries."""
    n = len(query)
    if n > len(reference) or not (
        torch.allclose(query, reference[:n]) and bool((query_labels == reference_labels[:n]).all())
    ):
        raise ValueError(
            "ref_includes_query=True, but the references do not begin with the queries and their labels: put the "
            "queries first, or pass False"
        )
