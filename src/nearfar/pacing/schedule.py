"""The age of self-paced learning over the rounds: as a share of samples to keep, or as numbers.

The paper gives no values. By a share is ours (methods of B5): how large a loss is says nothing by itself, how many
samples to keep does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nearfar.pacing.objective import Floats, WeightProblem
from nearfar.pacing.solver import Solution, solve
from nearfar.validation import check_positive

TRIES = 16
CLOSE = 0.002


@dataclass(frozen=True)
class Schedule:
    """start, start growth, start growth^2, ... up to `most`: Algorithm 1's min(c lambda, lambda_inf).

    >>> schedule = Schedule(0.7, 1.05, 0.95)
    >>> [round(schedule.at(t), 3) for t in (0, 1, 6, 7)]
    [0.7, 0.735, 0.938, 0.95]
    """

    start: float
    growth: float
    most: float

    def at(self, number: int) -> float:
        """The value of a round, the first is 0."""
        # the power of a large round overflows
        limit = math.log(self.most / self.start) if self.most < math.inf else math.inf
        grown = number * math.log(self.growth)
        return self.most if grown >= limit else self.start * math.exp(grown)


def schedule(*, share: float, age: float | None, growth: float, most: float | None) -> Schedule:
    """The schedule of a pacer's options, checked: by share, or where `age` is given by numbers."""
    check_positive("growth", growth)
    if age is not None:
        return Schedule(check_positive("age", age), growth, math.inf if most is None else check_positive("most", most))
    top = max(share, 0.95) if most is None else most
    for name, value in (("share", share), ("most", top)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, a share of the samples, got {value}")
    return Schedule(share, growth, top)


def share_count(share: float, samples: int) -> int:
    """How many samples a share is, at least one."""
    return max(1, min(samples, round(share * samples)))


def easiest(problem: WeightProblem, share: float) -> tuple[Floats, float]:
    """Weights 1 of the easiest share of samples and 0 of the others, and the age at which as many are easy among these.

    g(w) is G_p + G_n of Eq. 8. w0 keeps the share of smallest g(1); the age is the share's quantile of g(w0). With that
    of g(1) nobody would ever be excluded: dropping samples lowers everybody's g, and all come back.
    """
    count = share_count(share, len(problem.labels))
    w0 = np.zeros(len(problem.labels))
    w0[np.argsort(problem.hardness(np.ones_like(w0)), kind="stable")[:count]] = 1
    return w0, float(np.partition(problem.hardness(w0), count - 1)[count - 1])


def solve_for_share(problem: WeightProblem, share: float, *, tolerance: float = 1e-6) -> tuple[Solution, float]:
    """The solution whose mean weight is the share (to 0.002, or as near as 16 tries come), and its age.

    The age of `easiest` is only a start: at its solution more samples are back (measured on CUB vectors, 92% for 80%).
    The mean weight rises with the age, almost on a line, so the age is interpolated, every third time halved.
    """
    w, age = easiest(problem, share)
    # below, nobody is worth keeping; above, everybody is
    low, high = (0.0, 0.0), (max(age, float(problem.hardness(np.ones_like(w)).max())) + 2 * problem.mu, 1.0)
    best: tuple[Solution, float] | None = None
    for number in range(1, TRIES + 1):
        solution = solve(problem.at_age(age), w, tolerance=tolerance)
        w, kept = solution.weights, float(solution.weights.mean())
        if best is None or abs(kept - share) < abs(float(best[0].weights.mean()) - share):
            best = solution, age
        if abs(kept - share) <= CLOSE:
            break
        low, high = (low, (age, kept)) if kept > share else ((age, kept), high)
        at = 0.5 if number % 3 == 0 or high[1] <= low[1] else (share - low[1]) / (high[1] - low[1])
        age = low[0] + at * (high[0] - low[0])
    assert best is not None
    return best
