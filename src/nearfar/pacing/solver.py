"""Our solver of the weight subproblem: projected block-coordinate descent, vectorized over classes.

There are two kinds of moves, both for all classes at once:

- One sample of each class: its weight moves to its exact minimizer, clip(w - slope N_c^2 / (2 mu), 0, 1). For mu = 0
  the objective is linear in the weight, which moves to 0 or 1.
- All samples of each class: the class moves to its best set (`best_sets`). This escapes poor local minima that moves of
  single samples cannot leave, because a small class can be dropped or restored as a whole.

All classes move at the same time although they depend on each other, so each move is scaled by the best step in [0, 1].
The objective along a move is a parabola known from the class sums, so the step is exact and the objective never
increases. There is no Python loop over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nearfar.pacing.class_sets import best_sets, classes_by_size
from nearfar.pacing.objective import ClassSums, Floats, Ints, WeightProblem

MAX_BLOCKS = 256
MIN_GAIN = 1e-9


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights [N], the objective at the start and after every sweep, and the residual at the end."""

    weights: Floats
    trace: tuple[float, ...]
    residual: float

    @property
    def value(self) -> float:
        """Return the objective at the end."""
        return self.trace[-1]


def solve(problem: WeightProblem, start: ArrayLike, *, sweeps: int = 300, tolerance: float = 1e-6) -> Solution:
    """Return a stationary point of the problem that is no worse than `start` [N]. The result is deterministic.

    Sweeps move single samples until `problem.residual` is at most `tolerance`; the next sweep then also moves whole
    classes. This repeats until moving whole classes gains nothing, for at most `sweeps` sweeps.

    >>> problem = WeightProblem.of([0.5, 0.5, 1.0, 9.0], [0.1, 0.1, 0.1, 0.1], [0, 0, 1, 1], age=1.5, mu=0.0)
    >>> solve(problem, [1, 1, 1, 1]).weights.tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    w = np.asarray(start, np.float64)
    if w.shape != problem.labels.shape or not ((w >= 0) & (w <= 1)).all():
        raise ValueError(f"start must be [{len(problem.labels)}] weights in 0..1, got shape {list(w.shape)}")
    blocks, tables, everyone = class_blocks(problem.labels), classes_by_size(problem.labels), np.arange(len(w))
    descent = _Descent(problem, w)
    trace, stationary = [problem.value(w)], np.inf
    whole_classes = True
    for _ in range(sweeps):
        if whole_classes:
            descent.move(everyone, best_sets(problem, descent.w, descent.sums, tables))
        for block in blocks:
            descent.move(block)
        descent.sums = problem.sums(descent.w)  # recompute the sums to remove accumulated rounding error
        trace.append(problem.value(descent.w))
        whole_classes = problem.residual(descent.w) <= tolerance
        if whole_classes:
            if stationary - trace[-1] <= MIN_GAIN * abs(trace[-1]):
                break
            stationary = trace[-1]
    return Solution(descent.w, tuple(trace), problem.residual(descent.w))


def class_blocks(labels: Ints, *, most: int = MAX_BLOCKS) -> list[Ints]:
    """Return blocks of samples: block j has samples j, j + most, j + 2 most, ... of every class.

    >>> [block.tolist() for block in class_blocks(np.array([0, 1, 1, 0, 1]))]
    [[0, 1], [3, 2], [4]]
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    turn = (np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)) % most
    return np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1])


class _Descent:
    """The weights and their class sums, which every move updates."""

    def __init__(self, problem: WeightProblem, w: Floats) -> None:
        self.problem, self.w, self.sums = problem, w.copy(), problem.sums(w)

    def move(self, rows: Ints, target: Floats | None = None) -> None:
        """Move the weights of `rows` toward `target` (default: their minimizers) by the best step in [0, 1]."""
        problem, sums = self.problem, self.sums
        c, w, others = problem.labels[rows], self.w[rows], problem.classes - 1
        pos, neg, size, norm = problem.pos[rows], problem.neg[rows], problem.sizes[c], problem.pair_norm[c]
        mean = sums.mean[c]
        rest = (sums.mean.sum() - mean) / others
        # slope = N_c dL/dw: first the positive term, then all others
        slope = (sums.pos[c] + (mean * size - 2 * w) * pos) * norm
        slope += (sums.neg.sum() - sums.neg[c]) / others + rest * neg + 2 * problem.mu * (mean - rest) - problem.age
        if target is None:
            target = _minimizer(w, slope, size, problem.mu)
        d = target - w

        change = problem.sums_of(c, d, pos, neg)
        down = float((slope * d / size).sum())
        step = _best_step(down, problem.quadratic_part(change, float((d * d * pos * norm / size).sum())))
        if step == 0:
            return
        self.w[rows] = target if step == 1 else np.clip(w + step * d, 0, 1)
        self.sums = ClassSums(
            sums.mean + step * change.mean, sums.pos + step * change.pos, sums.neg + step * change.neg
        )


def _minimizer(w: Floats, slope: Floats, size: Floats, mu: float) -> Floats:
    """Return the minimizer of L in each weight, the others fixed: L has slope slope / N_c, curvature 2 mu / N_c^2."""
    if mu == 0:
        return np.where(slope < 0, 1.0, np.where(slope > 0, 0.0, w))
    result: Floats = np.clip(w - slope * size / (2 * mu), 0, 1)
    return result


def _best_step(down: float, curve: float) -> float:
    """Return the t in [0, 1] that minimizes down t + curve t^2, or 0 if no t makes it negative.

    >>> _best_step(-1.0, 1.0), _best_step(-1.0, -1.0), _best_step(1.0, -3.0), _best_step(1.0, 1.0)
    (0.5, 1.0, 1.0, 0.0)
    """
    if curve > 0:
        return min(max(-down / (2 * curve), 0.0), 1.0)
    return 1.0 if down + curve < 0 else 0.0
