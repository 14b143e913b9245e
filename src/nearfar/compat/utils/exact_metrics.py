"""The built-in metrics of the AccuracyCalculator, computed by `nearfar.evaluate`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.metrics import evaluate

METRICS = {
    "mean_average_precision": "map",
    "mean_average_precision_at_r": "map@r",
    "mean_reciprocal_rank": "mrr",
    "precision_at_1": "recall@1",  # precision at 1 is the same number as recall@1
    "r_precision": "r-precision",
}


def evaluate_exactly(
    query: Tensor,
    query_labels: Tensor,
    reference: Tensor,
    reference_labels: Tensor,
    ref_includes_query: bool,
    names: Sequence[str],
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return, for each metric, its values for the queries that have a positive, and the labels of these queries.

    The dictionary is empty if no query has a positive.
    """
    labels = [as_ids(query_labels, reference_labels), as_ids(reference_labels, query_labels)]
    if not torch.isin(labels[0], labels[1]).any():
        return {}
    scores = evaluate(
        reference,
        labels[1],
        queries=(query, labels[0]),
        ignore=[[row] for row in range(len(query_labels))] if ref_includes_query else None,
        distance="euclidean",
        metrics=[METRICS[name] for name in names],
        device=query.device,
    )
    if len(scores.labels) == 0:
        return {}
    return {name: (torch.as_tensor(scores.columns[METRICS[name]]), torch.as_tensor(scores.labels)) for name in names}


def as_ids(labels: Tensor, others: Tensor) -> Tensor:
    """Return one integer per label. Two integers are equal if and only if their labels are equal."""
    if not labels.is_floating_point() and not others.is_floating_point():
        return labels
    return torch.searchsorted(torch.unique(torch.cat([labels.double(), others.double()])), labels.double())
