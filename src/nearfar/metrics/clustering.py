"""Agreement of two partitions of the same samples: NMI, AMI and pairwise F1.

n_ij is the number of samples of class i in cluster j, a_i and b_j are its row and column sums, and n the total.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfar.validation import Array, Ints


@dataclass(frozen=True)
class Contingency:
    """The non-zero cells n_ij of the contingency table and its margins a (classes) and b (clusters)."""

    cells: Ints
    row: Ints
    column: Ints
    a: Ints
    b: Ints


def count_overlaps(labels: Array, clusters: Array) -> Contingency:
    """Return the sparse contingency table of two partitions, in O(n) memory for any number of classes and clusters."""
    if labels.ndim != 1 or labels.shape != clusters.shape or not len(labels):
        raise ValueError(f"labels and clusters must both be [N] with N > 0, got {labels.shape} and {clusters.shape}")
    _, left, a = np.unique(labels, return_inverse=True, return_counts=True)
    _, right, b = np.unique(clusters, return_inverse=True, return_counts=True)
    cells, counts = np.unique(left.astype(np.int64) * len(b) + right, return_counts=True)
    return Contingency(counts, cells // len(b), cells % len(b), a, b)


def normalized_mutual_info(labels: Array, clusters: Array) -> float:
    """Return NMI = 2 I / (H(labels) + H(clusters)): natural logarithms, arithmetic mean. It is 1 for two single groups.

    >>> round(normalized_mutual_info(np.array([0, 0, 1, 1]), np.array([5, 5, 7, 7])), 12)
    1.0
    """
    table = count_overlaps(labels, clusters)
    if len(table.a) == len(table.b) == 1:
        return 1.0
    return float(np.clip(2 * _mutual_info(table) / (_entropy(table.a) + _entropy(table.b)), 0.0, 1.0))


def adjusted_mutual_info(labels: Array, clusters: Array) -> float:
    """Return AMI = (I - E[I]) / ((H(labels) + H(clusters)) / 2 - E[I]) (Vinh et al., JMLR 2010).

    E[I] is the expectation over random partitions of the same sizes. Identical partitions give 1, independent ones
    about 0.

    >>> adjusted_mutual_info(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    """
    table = count_overlaps(labels, clusters)
    if len(table.cells) == len(table.a) == len(table.b):
        return 1.0
    expected = _expected_mutual_info(table)
    room = (_entropy(table.a) + _entropy(table.b)) / 2 - expected
    return float((_mutual_info(table) - expected) / (room if abs(room) > 1e-15 else np.copysign(1e-15, room)))


def pairwise_f1(labels: Array, clusters: Array) -> float:
    """Return F1 = 2 TP / (2 TP + FP + FN) over pairs of samples.

    A pair is positive if both have the same class, and predicted positive if both are in the same cluster. If neither
    partition has a positive pair, F1 is 1.

    >>> pairwise_f1(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]))
    0.4
    """
    table = count_overlaps(labels, clusters)
    both, truly, predicted = (int((n.astype(object) * (n - 1) // 2).sum()) for n in (table.cells, table.a, table.b))
    return 2 * both / (truly + predicted) if truly + predicted else 1.0


def _entropy(sizes: Ints) -> float:
    share = sizes / sizes.sum()
    return float(-(share * np.log(share)).sum())


def _mutual_info(table: Contingency) -> float:
    n = table.a.sum()
    share = table.cells / n
    outer = np.log(table.a[table.row]) + np.log(table.b[table.column])
    return float((share * (np.log(table.cells) + np.log(n) - outer)).sum())


def _expected_mutual_info(table: Contingency) -> float:
    """Return sum_ij sum_m (m/n) log(n m / (a_i b_j)) P(n_ij = m), P hypergeometric. Equal sizes share one term."""
    n = int(table.a.sum())
    log_factorial: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    a_sizes, a_times = np.unique(table.a, return_counts=True)
    b_sizes, b_times = np.unique(table.b, return_counts=True)
    total = 0.0
    for a, times in zip(a_sizes.tolist(), a_times.tolist(), strict=True):
        for b, repeats in zip(b_sizes.tolist(), b_times.tolist(), strict=True):
            m = np.arange(max(1, a + b - n), min(a, b) + 1)
            log_p = (
                log_factorial[[a, b, n - a, n - b]].sum()
                - log_factorial[n]
                - log_factorial[m]
                - log_factorial[a - m]
                - log_factorial[b - m]
                - log_factorial[n - a - b + m]
            )
            total += times * repeats * float((m / n * np.log(n * m / (a * b)) * np.exp(log_p)).sum())
    return total
