"""Algorithm 3 of the paper on BSPML (balanced self-paced metric learning, arXiv 2211.11751).

It updates the weight of one random sample at a time, with a gradient that is estimated from random samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from nearfar.pacing.objective import Floats, Ints, WeightProblem

CHUNK = 4096  # number of steps whose random numbers are drawn at once


def stochastic_gradient(
    problem: WeightProblem, w: Floats, mean: Floats, total: float, anchor: int, pos: Ints, negs: Ints
) -> float:
    """Estimate the partial derivative of the objective with respect to w_a from random samples (BSPML, Eq. 8).

    G = (1/N_c) (G_p + G_n + G_b - age) with G_p = mean_p w_p (xi+_p + xi+_a) and G_n = mean_n w_n (xi-_n + xi-_a).
    The means are over the random samples p in `pos` and n in `negs`. c is the class of sample a, and N_c is the size of
    this class. `WeightProblem` defines age, and xi+ and xi-, which measure how hard a sample is. G_b comes from the
    term that balances the classes, and needs no sampling.

    Args:
        problem: The objective.
        w: The weights [N].
        mean: The mean weight of each class [C].
        total: The sum of `mean`.
        anchor: The index of sample a.
        pos: Indices of random other samples of class c, empty if there are none; G_p is then 0.
        negs: Indices of random samples of other classes.
    """
    c = problem.labels[anchor]
    g_p = w[pos].dot(problem.pos[pos] + problem.pos[anchor]) / max(len(pos), 1)
    g_n = w[negs].dot(problem.neg[negs] + problem.neg[anchor]) / len(negs)
    g_b = 2 * problem.mu * (mean[c] - (total - mean[c]) / (problem.classes - 1))
    return float((g_p + g_n + g_b - problem.age) / problem.sizes[c])


def coordinate_descent(
    problem: WeightProblem,
    w: ArrayLike,
    *,
    steps: int,
    rate: float | Callable[[int], float] | None = None,
    classes: int = 16,
    per_class: int = 4,
    seed: int = 0,
    trace: Callable[[int, Floats], None] | None = None,
) -> Floats:
    """Run doubly stochastic projected coordinate gradient descent (BSPML, Algorithm 3).

    A step changes the weight w_a of one sample to clip(w_a - rate G, 0, 1), where G is its `stochastic_gradient`. Each
    step draws a sample uniformly, K other samples of its class, and K samples from each of P other classes, without
    replacement. If fewer samples or classes are available, it uses all of them. The paper does not specify P, K or the
    step size; the defaults are our choice.

    Args:
        problem: The objective.
        w: The initial weights [N].
        steps: Number of steps. `SelfPaced` uses 5 N.
        rate: Step size, or a function that maps the step number to a step size (Theorem 1 requires it to decrease). The
            default is 0.5 N / C for C classes.
        classes: Number of other classes per step, P.
        per_class: Number of samples per class, K.
        seed: Seed of the random draws.
        trace: Function that is called after every N steps, with the number of steps so far and the current weights.

    Returns:
        The final weights [N].
    """
    w = np.array(w, np.float64)
    step_size = 0.5 * len(w) / problem.classes if rate is None else rate
    mean = problem.sums(w).mean
    total = float(mean.sum())
    for t, (a, pos, negs) in enumerate(_draws(problem, steps, classes, per_class, np.random.default_rng(seed))):
        gamma = step_size(t) if callable(step_size) else step_size
        old, c = w[a], problem.labels[a]
        w[a] = min(max(old - gamma * stochastic_gradient(problem, w, mean, total, a, pos, negs), 0.0), 1.0)
        change = (w[a] - old) / problem.sizes[c]
        mean[c] += change
        total += change
        if trace is not None and (t + 1) % len(w) == 0:
            trace(t + 1, w)
    return w


def _draws(
    problem: WeightProblem, steps: int, classes: int, per_class: int, rng: np.random.Generator
) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield (anchor, positives, negatives) for every step. For speed, many steps are drawn at once."""
    order = np.argsort(problem.labels, kind="stable")
    sizes = problem.sizes.astype(np.int64)
    begins = np.cumsum(sizes) - sizes
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(begins, sizes)
    kinds = min(classes, len(sizes) - 1)
    for start in range(0, steps, CHUNK):
        anchors = rng.integers(len(order), size=min(CHUNK, steps - start))
        c = problem.labels[anchors]
        # `mates` are positions among the N_c - 1 other samples of the class. Adding 1 to those at or above the position
        # of the anchor turns them into positions in the class that skip the anchor.
        mates = _draw_distinct(sizes[c] - 1, per_class, rng)
        mates += (mates >= place[anchors][:, None]) & (mates >= 0)
        other = _draw_distinct(np.full(len(c), len(sizes) - 1), kinds, rng)
        other += other >= c[:, None]
        inside = _draw_distinct(sizes[other].ravel(), per_class, rng)
        rows = np.where(inside >= 0, begins[other].reshape(-1, 1) + inside, -1).reshape(len(c), -1)
        positives = np.where(mates >= 0, begins[c][:, None] + mates, -1)
        full = bool((rows >= 0).all() and (positives >= 0).all())
        for a, p, n in zip(anchors.tolist(), positives, rows, strict=True):
            yield (a, order[p], order[n]) if full else (a, order[p[p >= 0]], order[n[n >= 0]])


def _draw_distinct(counts: Ints, k: int, rng: np.random.Generator) -> Ints:
    """Draw k different numbers from range(count) for each count. Return [len(counts), k].

    If count < k, all numbers are drawn and the row is padded with -1.
    """
    chosen = np.full((len(counts), k), -1)
    for column in range(k):
        # Floyd's method: draw a number from 0..limit, and use `limit` instead if the number is already taken.
        limit = np.maximum(counts - k, 0) + column
        draw = rng.integers(np.maximum(limit, 0) + 1)
        taken = (chosen[:, :column] == draw[:, None]).any(1)
        chosen[:, column] = np.where(limit < counts, np.where(taken, limit, draw), -1)
    return chosen
