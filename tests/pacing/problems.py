"""Random weight problems, and Eq. 6 as a loop."""

from __future__ import annotations

import numpy as np

from nearfar.pacing.objective import Floats, WeightProblem


def random_problem(seed: int, *, samples: int, classes: int, mu: float, age: float = 1.8) -> WeightProblem:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(classes, size=samples - classes)])
    pos, neg = rng.gamma(2, 0.5, samples), rng.gamma(1, 0.3, samples)
    return WeightProblem.of(pos, neg, rng.permutation(labels), age=age, mu=mu)


def loop_value(problem: WeightProblem, w: Floats) -> float:
    """L(w), sample by sample and class by class."""
    members = [np.flatnonzero(problem.labels == c) for c in range(problem.classes)]
    mean = [w[rows].mean() for rows in members]
    total = 0.0
    for c, rows in enumerate(members):
        for a in rows:
            mates = [w[b] for b in rows if b != a]
            positive = np.mean(mates) * problem.pos[a] if mates else 0.0
            negative = np.mean([mean[k] for k in range(len(mean)) if k != c]) * problem.neg[a]
            total += w[a] * (positive + negative) / len(rows)
        total -= problem.age * mean[c]
        for k in range(c + 1, len(mean)):
            total += problem.mu / (len(mean) - 1) * (mean[c] - mean[k]) ** 2
    return float(total)
