"""The age of self-paced learning in each round: given directly, or as the fraction of samples to keep.

The paper states no values. The fraction is our choice: the size of a loss has no meaning by itself, but the number of
samples to keep does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nearfar.pacing.objective import Floats, WeightProblem
from nearfar.pacing.solver import Solution, solve
from nearfar.validation import check_positive

TRIALS = 16
TOLERANCE = 0.002


@dataclass(frozen=True)
class AgeSchedule:
    """The values start, start growth, start growth^2, ... up to `most`: min(c lambda, lambda_inf) of Algorithm 1.

    >>> schedule = AgeSchedule(0.7, 1.05, 0.95)
    >>> [round(schedule.at(t), 3) for t in (0, 1, 6, 7)]
    [0.7, 0.735, 0.938, 0.95]
    """

    start: float
    growth: float
    most: float

    def at(self, number: int) -> float:
        """Return the value of a round. The first round is 0."""
        # in logarithms, because growth^number overflows for large numbers
        limit = math.log(self.most / self.start) if self.most < math.inf else math.inf
        grown = number * math.log(self.growth)
        return self.most if grown >= limit else self.start * math.exp(grown)


def make_schedule(*, share: float, age: float | None, growth: float, most: float | None) -> AgeSchedule:
    """Check the options of a pacer, and return its schedule: of ages if `age` is given, else of fractions."""
    check_positive("growth", growth)
    if age is not None:
        return AgeSchedule(
            check_positive("age", age), growth, math.inf if most is None else check_positive("most", most)
        )
    top = max(share, 0.95) if most is None else most
    for name, value in (("share", share), ("most", top)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} is a fraction of the samples and must be above 0 and at most 1, got {value}")
    return AgeSchedule(share, growth, top)


def share_count(share: float, samples: int) -> int:
    """Return the number of samples that a fraction corresponds to, at least 1."""
    return max(1, min(samples, round(share * samples)))


def select_easiest(problem: WeightProblem, share: float) -> tuple[Floats, float]:
    """Return weights w0 that are 1 for the fraction `share` of easiest samples, and the age that separates them.

    With g(w) = G_p + G_n of Eq. 8, w0 keeps the samples with the smallest g(1), and the age is the quantile `share` of
    g(w0). The quantile of g(1) would exclude nothing: dropping samples lowers g for all, so all would be kept again.
    """
    count = share_count(share, len(problem.labels))
    w0 = np.zeros(len(problem.labels))
    w0[np.argsort(problem.hardness(np.ones_like(w0)), kind="stable")[:count]] = 1
    return w0, float(np.partition(problem.hardness(w0), count - 1)[count - 1])


def solve_for_share(problem: WeightProblem, share: float, *, tolerance: float = 1e-6) -> tuple[Solution, float]:
    """Return the solution whose mean weight is within 0.002 of `share`, or the closest of 16 trials, and its age.

    The age of `select_easiest` is the first trial: its solution keeps more samples (92% instead of 80% on CUB vectors).
    The mean weight grows almost linearly with the age, so the age is interpolated, and bisected every third time.
    """
    w, age = select_easiest(problem, share)
    # at the low age no sample is kept, at the high age all are
    low, high = (0.0, 0.0), (max(age, float(problem.hardness(np.ones_like(w)).max())) + 2 * problem.mu, 1.0)
    best: tuple[Solution, float] | None = None
    for number in range(1, TRIALS + 1):
        solution = solve(problem.at_age(age), w, tolerance=tolerance)
        w, kept = solution.weights, float(solution.weights.mean())
        if best is None or abs(kept - share) < abs(float(best[0].weights.mean()) - share):
            best = solution, age
        if abs(kept - share) <= TOLERANCE:
            break
        low, high = (low, (age, kept)) if kept > share else ((age, kept), high)
        at = 0.5 if number % 3 == 0 or high[1] <= low[1] else (share - low[1]) / (high[1] - low[1])
        age = low[0] + at * (high[0] - low[0])
    assert best is not None
    return best
