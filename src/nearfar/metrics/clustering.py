"""Agreement of two partitions of the same samples: NMI, AMI and pairwise F1.

In the contingency table, n_ij is the number of samples of class i in cluster j. Its row sums are a_i, its column sums
b_j, and its total is n.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfar.validation import Array, Ints


@dataclass(frozen=True)
class Contingency:
    """A sparse contingency table.

    Attributes:
        cells: The non-zero counts n_ij.
        row: Class i of each cell.
        column: Cluster j of each cell.
        a: Size of each class.
        b: Size of each cluster.
    """

    cells: Ints
    row: Ints
    column: Ints
    a: Ints
    b: Ints


def count_overlaps(labels: Array, clusters: Array) -> Contingency:
    """Return the contingency table of two partitions. Memory is O(n) for any number of classes and clusters."""
    if labels.ndim != 1 or labels.shape != clusters.shape or not len(labels):
        raise ValueError(
            f"labels and clusters must both have shape [N] with N > 0, got shapes {list(labels.shape)} and "
            f"{list(clusters.shape)}"
        )
    _, left, a = np.unique(labels, return_inverse=True, return_counts=True)
    _, right, b = np.unique(clusters, return_inverse=True, return_counts=True)
    cells, counts = np.unique(left.astype(np.int64) * len(b) + right, return_counts=True)
    return Contingency(counts, cells // len(b), cells % len(b), a, b)


def normalized_mutual_info(labels: Array, clusters: Array) -> float:
    """Return NMI = 2 I / (H(labels) + H(clusters)), with I the mutual information and H the entropy.

    If there is only one class and only one cluster, NMI is 1.

    >>> round(normalized_mutual_info(np.array([0, 0, 1, 1]), np.array([5, 5, 7, 7])), 12)
    1.0
    """
    table = count_overlaps(labels, clusters)
    if len(table.a) == len(table.b) == 1:
        return 1.0
    return float(np.clip(2 * _mutual_info(table) / (_entropy(table.a) + _entropy(table.b)), 0.0, 1.0))


def adjusted_mutual_info(labels: Array, clusters: Array) -> float:
    """Return AMI = (I - E[I]) / ((H(labels) + H(clusters)) / 2 - E[I]) (Vinh et al., JMLR 2010).

    I is the mutual information and H the entropy. E[I] is the expectation of I over random partitions with the same
    class and cluster sizes. Identical partitions give 1, and independent partitions about 0.

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

    A pair is positive if both samples have the same class, and predicted positive if both are in the same cluster.
    If no pair is positive and none is predicted positive, F1 is 1.

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
    """Return the expected mutual information of random partitions with the same class and cluster sizes.

    It is sum_ij sum_m (m/n) log(n m / (a_i b_j)) P(n_ij = m), where P is the hypergeometric distribution. The inner sum
    depends only on the sizes a_i and b_j, so it is computed once per pair of distinct sizes.
    """
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
