"""The age of self-paced learning in each round, given directly or as the fraction of samples to keep.

A round is one update of the weights. In a round, samples with a loss up to the age are kept. The paper on BSPML
(balanced self-paced metric learning, arXiv 2211.11751) does not state values for the age. We let users specify the
fraction of samples to keep instead, because it is easier to choose than a value on the scale of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nearfar.pacing.objective import Floats, WeightProblem
from nearfar.pacing.solver import Solution, solve
from nearfar.validation import check_positive

TRIALS = 16  # maximum number of ages that `solve_for_share` tries
TOLERANCE = 0.002  # accepted difference between the mean weight and the requested share


@dataclass(frozen=True)
class AgeSchedule:
    """A sequence start, start * growth, start * growth^2, ... that is limited to `most` (BSPML, Algorithm 1).

    >>> schedule = AgeSchedule(0.7, 1.05, 0.95)
    >>> [round(schedule.at(t), 3) for t in (0, 1, 6, 7)]
    [0.7, 0.735, 0.938, 0.95]
    """

    start: float
    growth: float
    most: float

    def at(self, number: int) -> float:
        """Return the value in round `number`. Rounds are counted from 0."""
        # Compare logarithms, because growth^number overflows after many rounds.
        limit = math.log(self.most / self.start) if self.most < math.inf else math.inf
        grown = number * math.log(self.growth)
        return self.most if grown >= limit else self.start * math.exp(grown)


def make_schedule(*, share: float, age: float | None, growth: float, most: float | None) -> AgeSchedule:
    """Check the options of a pacer and create its schedule.

    The values of the schedule are ages if `age` is given, and otherwise fractions of the samples to keep.
    """
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
    """Return the fraction `share` of a number of samples, rounded to an integer of at least 1."""
    return max(1, min(samples, round(share * samples)))


def select_easiest(problem: WeightProblem, share: float) -> tuple[Floats, float]:
    """Return weights w0 that are 1 for the easiest fraction `share` of the samples and 0 for the others, and an age.

    The cost of a sample is g(w) = G_p + G_n of BSPML, Eq. 8 (`WeightProblem.hardness`). w0 is 1 for the samples with
    the smallest cost when all weights are 1. The age is the quantile `share` of the costs g(w0). The same quantile of
    the costs with all weights 1 would be too high: after some samples are dropped, the costs of all samples are lower,
    and no sample would be above the age.
    """
    count = share_count(share, len(problem.labels))
    w0 = np.zeros(len(problem.labels))
    w0[np.argsort(problem.hardness(np.ones_like(w0)), kind="stable")[:count]] = 1
    return w0, float(np.partition(problem.hardness(w0), count - 1)[count - 1])


def solve_for_share(problem: WeightProblem, share: float, *, tolerance: float = 1e-6) -> tuple[Solution, float]:
    """Search for the age at which the mean weight of the solution is `share`. Return the solution and its age.

    The search ends when the mean weight is within 0.002 of `share`, or after 16 trials. Then the closest solution is
    returned. The first trial is the age of `select_easiest`, whose solution keeps too many samples (92% instead of 80%
    on features of CUB). The mean weight grows almost linearly with the age, so the next age is found by linear
    interpolation; every third trial uses bisection instead.
    """
    w, age = select_easiest(problem, share)
    # Pairs (age, mean weight): at the low age no sample is kept, at the high age all samples are.
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
