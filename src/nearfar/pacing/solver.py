"""A solver for the sample weights of BSPML (balanced self-paced metric learning).

It uses projected block-coordinate descent, vectorized over classes, to minimize the objective of `WeightProblem`.

There are four kinds of moves. All change all classes at once:

- Move one sample of each class: its weight changes to the minimizer of the objective, clip(w - g N_c^2 / (2 mu), 0, 1),
  where g is the derivative of the objective with respect to the weight, N_c is the size of the class and mu is the
  weight of the objective's quadratic term. If mu = 0, the objective is linear, so the minimizer is 0 or 1. In classes
  of more than 256 samples, several samples move at once.
- Move all samples of each class: the weights change to 1 for the set of samples that minimizes the objective if the
  other classes are fixed, and to 0 for the others (`best_sets`). This can drop or restore a small class as a whole, and
  so escapes poor local minima in which no change of a single weight is an improvement.
- Fill each class: its samples get weight 1 in the order of their cost, up to the mean weight that balances the cost of
  the last sample and the quadratic term.
- Shift all classes: the mean weights of all classes change by the same amount.

If mu is large, a single weight can change only a little, because the quadratic term ties the mean weights of the
classes to each other. The last two moves are not limited by this term. With them, mu = 10 takes a tenth of the sweeps.
They are made if mu > 0.

The minimizers are computed for each class separately, but the classes depend on each other. Therefore each move is
scaled by the best step size in [0, 1]. Along a move the objective is a parabola whose coefficients follow from the sums
of weights and losses of each class, so the best step size is exact and the objective never increases. There is no
Python loop over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nearfar.pacing.class_sets import best_sets, classes_by_size
from nearfar.pacing.objective import ClassSums, Floats, Ints, WeightProblem

MAX_BLOCKS = 256  # maximum number of blocks of samples (see `class_blocks`); a sweep updates them in turn
MIN_GAIN = 1e-9  # relative decrease of the objective below which the solver stops
FILLS = 2  # number of times that a sweep fills the classes


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of `solve`.

    Attributes:
        weights: The weights [N].
        trace: The objective at the start and after every sweep.
        residual: `WeightProblem.residual` of the weights.
    """

    weights: Floats
    trace: tuple[float, ...]
    residual: float

    @property
    def value(self) -> float:
        """Return the objective of the solution."""
        return self.trace[-1]


def solve(problem: WeightProblem, start: ArrayLike, *, sweeps: int = 300, tolerance: float = 1e-6) -> Solution:
    """Find a stationary point of the problem whose objective is at most that of `start` [N].

    A sweep moves every sample of every class once, and if mu > 0, it first fills and shifts the classes. The first
    sweep also moves whole classes. After that, sweeps do not move whole classes until `problem.residual` is at most
    `tolerance`; the next sweep then moves them again. The solver stops when moving whole classes no longer lowers the
    objective, or after `sweeps` sweeps. The result is deterministic.

    >>> problem = WeightProblem.of([0.5, 0.5, 1.0, 9.0], [0.1, 0.1, 0.1, 0.1], [0, 0, 1, 1], age=1.5, mu=0.0)
    >>> solve(problem, [1, 1, 1, 1]).weights.tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    w = np.asarray(start, np.float64)
    if w.shape != problem.labels.shape:
        raise ValueError(f"start must have shape {[len(problem.labels)]}, got shape {list(w.shape)}")
    if not ((w >= 0) & (w <= 1)).all():
        wrong = w[~((w >= 0) & (w <= 1))][0]
        raise ValueError(f"start must have weights between 0 and 1, got {wrong}")
    blocks, tables, everyone = class_blocks(problem.labels), classes_by_size(problem.labels), np.arange(len(w))
    descent = _Descent(problem, w)
    trace, stationary = [problem.value(w)], np.inf
    whole_classes = True
    for _ in range(sweeps):
        if whole_classes:
            target = best_sets(problem, descent.w, descent.sums, tables)
            descent.move_to(everyone, target, descent.slope(everyone))
        if problem.mu > 0:
            for _ in range(FILLS):
                descent.fill()
            descent.shift()
        for block in blocks:
            descent.move(block)
        descent.sums = problem.sums(descent.w)  # recompute, to remove accumulated rounding errors
        trace.append(problem.value(descent.w))
        whole_classes = problem.residual(descent.w) <= tolerance
        if whole_classes:
            if stationary - trace[-1] <= MIN_GAIN * abs(trace[-1]):
                break
            stationary = trace[-1]
    return Solution(descent.w, tuple(trace), problem.residual(descent.w))


def class_blocks(labels: Ints, *, most: int = MAX_BLOCKS) -> list[Ints]:
    """Split the samples into at most `most` blocks: block j has the samples j, j + most, ... of every class.

    >>> [block.tolist() for block in class_blocks(np.array([0, 1, 1, 0, 1]))]
    [[0, 1], [3, 2], [4]]
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    turn = (np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)) % most
    return np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1])


class _Descent:
    """The current weights and their class sums."""

    def __init__(self, problem: WeightProblem, w: Floats) -> None:
        self.problem, self.w, self.sums = problem, w.copy(), problem.sums(w)

    def move(self, rows: Ints) -> None:
        """Move the weights of the samples `rows`, each toward its minimizer."""
        problem, slope = self.problem, self.slope(rows)
        self.move_to(rows, _minimizer(self.w[rows], slope, problem.sizes[problem.labels[rows]], problem.mu), slope)

    def move_to(self, rows: Ints, target: Floats, slope: Floats) -> None:
        """Move the weights of the samples `rows` toward `target` by the best step size in [0, 1].

        `slope` is the slope of these samples at the current weights.
        """
        problem, sums = self.problem, self.sums
        c, w = problem.labels[rows], self.w[rows]
        pos, neg, size, norm = problem.pos[rows], problem.neg[rows], problem.sizes[c], problem.pair_norm[c]
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

    def fill(self) -> None:
        """Move the weights of each class toward the minimizer for fixed costs of its samples.

        The cost of a sample is its slope without the term 2 mu mean, where mean is the mean weight of its class. In the
        order of their cost, the samples get weight 1 while cost + 2 mu mean is negative. The last one gets the weight
        at which the sum is 0.
        """
        problem, everyone = self.problem, np.arange(len(self.w))
        c, size, slope = problem.labels, problem.sizes[problem.labels], self.slope(everyone)
        cost = slope - 2 * problem.mu * self.sums.mean[c]
        order = np.lexsort((cost, c))
        cheaper = np.empty(len(c))  # number of samples of the class that cost less
        cheaper[order] = everyone - (np.cumsum(problem.sizes) - problem.sizes)[c[order]]
        self.move_to(everyone, np.clip(-cost * size / (2 * problem.mu) - cheaper, 0, 1), slope)

    def shift(self) -> None:
        """Change one weight between 0 and 1 of each class, so that the mean weights change by the same amount.

        Classes whose weights are all 0 or 1 do not change.
        """
        problem = self.problem
        inner = np.flatnonzero((self.w > 0) & (self.w < 1))
        rows = inner[np.unique(problem.labels[inner], return_index=True)[1]]
        if len(rows) == 0:
            return
        w, size, slope = self.w[rows], problem.sizes[problem.labels[rows]], self.slope(rows)
        # the largest change that keeps the weights in [0, 1], in the direction in which the objective decreases
        change = ((1 - w) / size).min() if slope.sum() < 0 else -(w / size).min()
        self.move_to(rows, np.clip(w + change * size, 0, 1), slope)

    def slope(self, rows: Ints) -> Floats:
        """Return the derivative of the objective with respect to the weights of `rows`, times the class sizes."""
        problem, sums = self.problem, self.sums
        c, w, others = problem.labels[rows], self.w[rows], problem.classes - 1
        pos, neg, size, norm = problem.pos[rows], problem.neg[rows], problem.sizes[c], problem.pair_norm[c]
        mean = sums.mean[c]
        rest = (sums.mean.sum() - mean) / others
        # The first line is the term with xi+, the second line adds all other terms.
        slope = (sums.pos[c] + (mean * size - 2 * w) * pos) * norm
        slope += (sums.neg.sum() - sums.neg[c]) / others + rest * neg + 2 * problem.mu * (mean - rest) - problem.age
        return slope


def _minimizer(w: Floats, slope: Floats, size: Floats, mu: float) -> Floats:
    """Return the value in [0, 1] of each weight that minimizes the objective with all other weights fixed.

    As a function of one weight, the objective has the derivative slope / N_c and the second derivative 2 mu / N_c^2,
    where N_c is the size of the class.
    """
    if mu == 0:
        return np.where(slope < 0, 1.0, np.where(slope > 0, 0.0, w))
    result: Floats = np.clip(w - slope * size / (2 * mu), 0, 1)
    return result


def _best_step(down: float, curve: float) -> float:
    """Return the t in [0, 1] that minimizes the parabola down * t + curve * t^2.

    >>> _best_step(-1.0, 1.0), _best_step(-1.0, -1.0), _best_step(1.0, -3.0), _best_step(1.0, 1.0)
    (0.5, 1.0, 1.0, 0.0)
    """
    if curve > 0:
        return min(max(-down / (2 * curve), 0.0), 1.0)
    return 1.0 if down + curve < 0 else 0.0
