"""Our solver of the weight sub-problem: projected block-coordinate descent, vectorized over classes.

Two kinds of blocks, both over all classes at once:

- one sample of each class: every weight moves to its own exact minimizer, clip(w - slope N_c^2 / (2 mu), 0, 1), or for
  mu = 0, where the objective is linear in it, to 0 or 1;
- all samples of each class: every class moves to its best set (`best_sets`). This leaves the poor local minima in which
  single weights get stuck: a small class drops out or comes back as a whole.

The classes move at the same time although they hang together, so each move is scaled by the best step in [0, 1]. Along
it the objective is a parabola known from the sums of the classes, so the step is exact and nothing ever increases the
objective. There is no Python loop over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nearfar.pacing.class_sets import best_sets, classes_by_size
from nearfar.pacing.objective import ClassSums, Floats, Ints, WeightProblem

MOST_BLOCKS = 256
LITTLE = 1e-9


@dataclass(frozen=True, eq=False)
class Solution:
    """The weights [N], the objective at the start and after every sweep, and how far from stationary the end is."""

    weights: Floats
    trace: tuple[float, ...]
    residual: float

    @property
    def value(self) -> float:
        """The objective at the end."""
        return self.trace[-1]


def solve(problem: WeightProblem, start: ArrayLike, *, sweeps: int = 300, tolerance: float = 1e-6) -> Solution:
    """A stationary point of the problem, no worse than `start` [N].

    Sweeps over single samples until `problem.residual` is at most `tolerance`, then over whole classes, and so on until
    the latter gains nothing, at most `sweeps` in all. Deterministic: nothing is drawn.

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
        descent.sums = problem.sums(descent.w)  # without the rounding of many small changes
        trace.append(problem.value(descent.w))
        whole_classes = problem.residual(descent.w) <= tolerance
        if whole_classes:
            if stationary - trace[-1] <= LITTLE * abs(trace[-1]):
                break
            stationary = trace[-1]
    return Solution(descent.w, tuple(trace), problem.residual(descent.w))


def class_blocks(labels: Ints, *, most: int = MOST_BLOCKS) -> list[Ints]:
    """Blocks of rows, the j-th sample of every class in the j-th; in classes above `most`, every `most`-th from j.

    >>> [block.tolist() for block in class_blocks(np.array([0, 1, 1, 0, 1]))]
    [[0, 1], [3, 2], [4]]
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    turn = (np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)) % most
    return np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1])


class _Descent:
    """Weights and the sums of their classes, which follow every move."""

    def __init__(self, problem: WeightProblem, w: Floats) -> None:
        self.problem, self.w, self.sums = problem, w.copy(), problem.sums(w)

    def move(self, rows: Ints, target: Floats | None = None) -> None:
        """Move the weights of `rows` toward `target` (their own minimizers) by the best step in [0, 1]."""
        problem, sums = self.problem, self.sums
        c, w, others = problem.labels[rows], self.w[rows], problem.classes - 1
        pos, neg, size, norm = problem.pos[rows], problem.neg[rows], problem.sizes[c], problem.pair_norm[c]
        mean = sums.mean[c]
        rest = (sums.mean.sum() - mean) / others
        slope = (sums.pos[c] + (mean * size - 2 * w) * pos) * norm  # N_c dL/dw
        slope += (sums.neg.sum() - sums.neg[c]) / others + rest * neg + 2 * problem.mu * (mean - rest) - problem.age
        if target is None:
            target = _minimizer(w, slope, size, problem.mu)
        d = target - w

        change = problem.sums_of(c, d, pos, neg)
        down = float((slope * d / size).sum())
        step = _lowest(down, problem.curved(change, float((d * d * pos * norm / size).sum())))
        if step == 0:
            return
        self.w[rows] = target if step == 1 else np.clip(w + step * d, 0, 1)
        self.sums = ClassSums(
            sums.mean + step * change.mean, sums.pos + step * change.pos, sums.neg + step * change.neg
        )


def _minimizer(w: Floats, slope: Floats, size: Floats, mu: float) -> Floats:
    """Of each weight, all others fixed: its curvature is 2 mu / N_c^2 and its slope `slope` / N_c."""
    if mu == 0:
        return np.where(slope < 0, 1.0, np.where(slope > 0, 0.0, w))
    result: Floats = np.clip(w - slope * size / (2 * mu), 0, 1)
    return result


def _lowest(down: float, curve: float) -> float:
    """The t in [0, 1] at which down t + curve t^2 is lowest; 0 where nothing is below 0.

    >>> _lowest(-1.0, 1.0), _lowest(-1.0, -1.0), _lowest(1.0, -3.0), _lowest(1.0, 1.0)
    (0.5, 1.0, 1.0, 0.0)
    """
    if curve > 0:
        return min(max(-down / (2 * curve), 0.0), 1.0)
    return 1.0 if down + curve < 0 else 0.0
