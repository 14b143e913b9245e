"""Algorithm 3 of BSPML as printed: update one random weight at a time, with a gradient from a few random samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from nearfar.pacing.objective import Floats, Ints, WeightProblem

CHUNK = 4096


def stochastic_gradient(
    problem: WeightProblem, w: Floats, mean: Floats, total: float, anchor: int, pos: Ints, negs: Ints
) -> float:
    """Return G(w_a) of Eq. 8 from random positives `pos` [K] and negatives `negs` [P K].

    G = (1/N_c) (G_p + G_n + G_b - age) with G_p = mean_p w_p (xi+_p + xi+_a) and G_n = mean_n w_n (xi-_n + xi-_a). G_b
    is computed from `mean` [C], the mean weight of each class, and its sum `total`. G_p is 0 for a class of one.
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
    """Run doubly stochastic projected coordinate gradient descent (Algorithm 3): w_a <- clip(w_a - rate G, 0, 1).

    Each step draws a sample uniformly, K other samples of its class, and K samples from each of P other classes,
    without replacement (all available samples if there are fewer). The paper does not state P, K or the step size; the
    defaults are our choice.

    Args:
        problem: The objective.
        w: Weights [N] to start from.
        steps: Number of steps; the pacer uses 5 N.
        rate: Step size, or a function from step to step size (Theorem 1 requires it to decrease). Default: 0.5 N/C.
        classes: Number of other classes per step (P).
        per_class: Number of samples per class (K).
        seed: Seed of the draws.
        trace: Function of the step and the weights, called after every N steps.
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
    """Yield anchor, positives and negatives of every step; they are drawn many steps at a time."""
    order = np.argsort(problem.labels, kind="stable")
    sizes = problem.sizes.astype(np.int64)
    begins = np.cumsum(sizes) - sizes
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(begins, sizes)
    kinds = min(classes, len(sizes) - 1)
    for start in range(0, steps, CHUNK):
        anchors = rng.integers(len(order), size=min(CHUNK, steps - start))
        c = problem.labels[anchors]
        # positions among the N_c - 1 other samples: add 1 from the anchor's position on, to skip it
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
    """Draw k different numbers below each count, [len(counts), k], padded with -1 if count < k (Floyd's method)."""
    chosen = np.full((len(counts), k), -1)
    for column in range(k):
        # Floyd's method: draw number `column` is uniform on 0..limit; if already taken, `limit` is used instead
        limit = np.maximum(counts - k, 0) + column
        draw = rng.integers(np.maximum(limit, 0) + 1)
        taken = (chosen[:, :column] == draw[:, None]).any(1)
        chosen[:, column] = np.where(limit < counts, np.where(taken, limit, draw), -1)
    return chosen
