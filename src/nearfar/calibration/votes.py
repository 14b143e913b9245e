"""Votes of the nearest neighbors for classes."""

from __future__ import annotations

import numpy as np

from nearfar.validation import Floats, Ints

VOTERS = 10  # number of nearest neighbors that vote for the class of a query


def vote(
    probability: Floats, labels: Ints, sizes: Ints, *, own: Ints | None = None, shown: int = 1
) -> tuple[Ints, Floats]:
    """Return the classes with the most votes for each query, and their scores.

    The score of a class is the sum of the probabilities of its samples among the k nearest neighbors, divided by the
    largest number of its samples that could be among them:

        score(c) = sum of p_i over neighbors i of class c / min(k, n_c)

    The score is 1 if as many neighbors as possible are of class c, each with probability 1. The divisor lets a class of
    few samples, such as a new class, compete with a class of many. Equal scores are ordered by class number.

    Args:
        probability: Probability that each neighbor has the class of the query [Q, k]. It is 0 for missing neighbors.
        labels: Class numbers of the neighbors [Q, k], -1 for missing neighbors.
        sizes: Number of samples n_c of each class [C] in the gallery.
        own: For each query that is in the gallery, its class number; -1 for other queries [Q]. Such a query is not its
            own neighbor, so n_c of its class is one smaller. None if no query is in the gallery.
        shown: Number of classes to return.

    Returns:
        Class numbers [Q, shown], -1 where there are fewer classes, and scores [Q, shown], descending.

    >>> vote(np.array([[0.9, 0.8, 0.5]]), np.array([[0, 1, 0]]), np.array([5, 1]), shown=2)
    (array([[1, 0]]), array([[0.8       , 0.46666667]]))
    """
    count, k = labels.shape
    # For each neighbor: the sum of probabilities of the neighbors of its class, and whether it is the first of these.
    same = (labels[:, :, None] == labels[:, None, :]) & (labels >= 0)[:, :, None]
    totals = (same * probability[:, None, :]).sum(2)
    is_first = ~(np.tril(np.ones((k, k), np.bool_), -1) & same).any(2) & (labels >= 0)
    counts = sizes[labels] if own is None else sizes[labels] - (labels == own[:, None])
    divisor = np.minimum(k, np.maximum(counts, 1))
    score = np.where(is_first, totals / divisor, -1.0)
    order = np.lexsort((labels, -score), axis=1)[:, :shown]
    rows = np.arange(count)[:, None]
    best = score[rows, order]
    classes, scores = np.where(best >= 0, labels[rows, order], -1), np.maximum(best, 0.0)
    missing = ((0, 0), (0, shown - order.shape[1]))
    return np.pad(classes, missing, constant_values=-1), np.pad(scores, missing)
