"""For each class, find the best set of samples to give weight 1, with the weights of all other classes fixed.

`nearfar.pacing.solver` uses this to update whole classes at once.
"""

from __future__ import annotations

import numpy as np

from nearfar.pacing.objective import ClassSums, Floats, Ints, WeightProblem

MAX_SIZES = 64  # in classes of more than this many samples, only MAX_SIZES + 1 set sizes are tried
CHUNK = 1 << 21  # approximate limit on the number of entries of the largest temporary array


def classes_by_size(labels: Ints) -> list[Ints]:
    """Group the classes by size: return tables [classes, size] of sample indices, one or more for each class size.

    Large tables are split to limit the memory of `best_sets`.
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    begins = np.cumsum(sizes) - sizes
    tables = []
    for size in np.unique(sizes).tolist():
        starts = begins[sizes == size]
        step = max(1, CHUNK // (size * min(size + 1, MAX_SIZES + 1)))
        for first in range(0, len(starts), step):
            tables.append(order[starts[first : first + step, None] + np.arange(size)])
    return tables


def best_sets(problem: WeightProblem, w: Floats, sums: ClassSums, tables: list[Ints]) -> Floats:
    """Return new weights: in each class, 1 for the samples of its best set and 0 for its other samples.

    The best set of a class minimizes the objective of `WeightProblem` with the weights w of all other classes fixed.
    `WeightProblem` also defines xi+, xi-, age and mu. For a class of n samples, let m be the average over the other
    classes of their mean w, and v the average over the other classes of their mean w xi-. The part of the objective
    that depends on the class is, for a set S of s samples,

        (1/n) [sum_{a in S} ((s - 1)/(n - 1) xi+_a + m xi-_a) + s (v - age)] + mu ((s/n)^2 - 2 m s/n)

    For a given s, the best set has the s samples with the smallest (s - 1)/(n - 1) xi+ + m xi-. For classes of up to 64
    samples, every s from 0 to n is tried, and for larger classes 65 evenly spaced values. A class keeps its current
    weights unless its best set gives a lower objective.
    """
    target: Floats = w.copy()
    others = problem.classes - 1
    for rows in tables:
        c, n = problem.labels[rows[:, 0]], rows.shape[1]
        m = ((sums.mean.sum() - sums.mean[c]) / others)[:, None]
        price = (sums.neg.sum() - sums.neg[c])[:, None] / others - problem.age
        pos, neg, now = problem.pos[rows], m * problem.neg[rows], w[rows]

        sizes = np.unique(np.linspace(0, n, min(n, MAX_SIZES) + 1).round().astype(np.int64))
        pairs = np.maximum(sizes - 1, 0) / max(n - 1, 1)
        each = pairs[None, :, None] * pos[:, None] + neg[:, None]  # [classes, set sizes, n]
        order = np.argsort(each, axis=2)
        smallest = np.take_along_axis(each, order, 2)
        inside = np.where(np.arange(n) < sizes[:, None], smallest, 0.0).sum(2)
        cost = (inside + sizes * price) / n + problem.mu * ((sizes / n) ** 2 - 2 * m * sizes / n)

        zeta = now.sum(1, keepdims=True)
        own = now * ((zeta - now) / max(n - 1, 1) * pos + neg)
        before = (own.sum(1, keepdims=True) + zeta * price) / n + problem.mu * ((zeta / n) ** 2 - 2 * m * zeta / n)

        best = cost.argmin(1)
        line = np.arange(len(rows))
        chosen = np.zeros_like(now)
        np.put_along_axis(chosen, order[line, best], (np.arange(n) < sizes[best][:, None]).astype(np.float64), 1)
        better = cost[line, best][:, None] < before
        target[rows] = np.where(better, chosen, now)
    return target
