"""Retrieval metrics from the labels of the k nearest neighbors, for any comparison of labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Compare = Callable[[Tensor, Tensor], Tensor]
LabelCounts = tuple[Tensor, Tensor]
EQUALITY: Compare = torch.eq


def equal_rows(labels: Tensor, others: Tensor) -> Tensor:
    """Compare N labels with M other labels; return the mask [N, M] of equal ones. A label may have several columns."""
    same = labels[:, None] == others[None]
    return same if same.ndim == 2 else same.flatten(2).all(2)


def get_label_match_counts(query_labels: Tensor, reference_labels: Tensor, label_comparison_fn: Compare) -> LabelCounts:
    """Return the distinct labels of the queries, and the number of references that match each label."""
    kinds = torch.unique(query_labels, dim=0)
    if label_comparison_fn is EQUALITY:
        return kinds, equal_rows(kinds, reference_labels).sum(1)
    counts = [int(label_comparison_fn(kind[None], reference_labels).sum()) for kind in kinds]
    return kinds, torch.tensor(counts, device=query_labels.device)


def get_lone_query_labels(
    query_labels: Tensor, label_counts: LabelCounts, ref_includes_query: bool, label_comparison_fn: Compare
) -> tuple[Tensor, Tensor]:
    """Return the labels that match no reference, and the mask [Q] of the queries whose labels match a reference.

    With `ref_includes_query`, a query does not count as its own match.
    """
    kinds, counts = label_counts
    if ref_includes_query:
        itself = label_comparison_fn(kinds, kinds)
        itself = itself if itself.ndim == 1 else itself.flatten(1).all(1)
        counts = counts - itself.long()
    lone = kinds[counts <= 0]
    return lone, ~equal_rows(query_labels, lone).any(1)


def average(values: Tensor, labels: Tensor, avg_of_avgs: bool, return_per_class: bool) -> Any:
    """Average values [Q] over the queries.

    With `avg_of_avgs`, return the average of the class averages. With `return_per_class`, return a list of the class
    averages.
    """
    if not (avg_of_avgs or return_per_class):
        return values.mean().item()
    kinds, kind = torch.unique(labels, dim=0, return_inverse=True)
    sums = values.new_zeros(len(kinds)).index_add_(0, kind, values)
    means = sums / torch.bincount(kind, minlength=len(kinds))
    return means.tolist() if return_per_class else means.mean().item()


def precision_at_k(same: Tensor, k: int) -> Tensor:
    """Compute the fraction of matches among the first k neighbors of each query. `same` [Q, n] marks the matches."""
    return same[:, :k].sum(1).double() / k


def r_precision(same: Tensor, relevant: Tensor) -> Tensor:
    """Compute the fraction of matches among the first R neighbors of each query, where R is its entry in `relevant`."""
    first = torch.arange(same.shape[1], device=same.device) < relevant[:, None]
    return (same & first).sum(1).double() / first.sum(1)


def average_precision(same: Tensor, relevant: Tensor, *, at_r: bool) -> Tensor:
    """Compute the average precision over all neighbors of each query. The result has shape [Q].

    With `at_r`, use only the first R neighbors, where R is the number of relevant references of the query.
    """
    position = torch.arange(1, same.shape[1] + 1, device=same.device)
    counted = same & (position <= relevant[:, None]) if at_r else same
    return (counted.cumsum(1).double() / position * counted).sum(1) / relevant


def reciprocal_rank(same: Tensor) -> Tensor:
    """Compute 1 / (position of the first match) for each query. Without a match, the result is 0."""
    return torch.where(same.any(1), 1.0 / (same.int().argmax(1) + 1.0), 0.0)
