"""Plan the rounds of successive halving: candidates, class splits and steps per round, and the time they take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TrialCost:
    """Estimated time of a trial: overhead + steps * step.

    Attributes:
        overhead: Seconds that do not depend on the number of steps.
        step: Seconds per step.
    """

    overhead: float
    step: float

    def seconds(self, steps: int) -> float:
        """Return the estimated time of a trial with this number of steps, in seconds."""
        return self.overhead + steps * self.step


def round_sizes(candidates: int) -> list[int]:
    """Return the number of candidates in each round.

    Each round has half as many candidates as the previous one (rounded up), until two are left.

    >>> round_sizes(8), round_sizes(5), round_sizes(2)
    ([8, 4, 2], [5, 3, 2], [2])
    """
    sizes = [candidates]
    while sizes[-1] > 2:
        sizes.append((sizes[-1] + 1) // 2)
    return sizes


def planned_splits(rounds: int) -> list[int]:
    """Return the number of class splits in each round: one in the first, three in the last, two in between.

    A class split is a random division of the classes into training classes and held-out classes.

    >>> planned_splits(4), planned_splits(1)
    ([1, 2, 2, 3], [3])
    """
    return [*[1, *([2] * rounds)][: rounds - 1], 3]


def needed_seconds(cost: TrialCost, trials: Sequence[int], steps: int, full: int) -> float:
    """Return the time of all rounds in seconds.

    The number of steps per trial doubles from round to round until it reaches `full`.

    Args:
        cost: Time of a trial.
        trials: Number of trials in each round.
        steps: Number of steps per trial in the first round.
        full: Largest number of steps per trial.

    In this example, a trial takes 1 s plus 0.1 s per step: 4 trials of 10 steps, then 6 trials of 15 steps.

    >>> needed_seconds(TrialCost(1, 0.1), [4, 6], 10, full=15)
    23.0
    """
    return sum(count * cost.seconds(min(full, steps * 2**i)) for i, count in enumerate(trials))


def affordable_steps(cost: TrialCost, trials: Sequence[int], seconds: float, full: int) -> int:
    """Return the largest number of steps per trial in the first round for which all rounds fit into the time budget.

    The number of steps per trial doubles from round to round until it reaches `full`. The result is at most `full`. It
    is 0 if not even one step per trial fits.

    Args:
        cost: Time of a trial.
        trials: Number of trials in each round.
        seconds: The time budget.
        full: Largest number of steps per trial.

    In this example, a trial takes 1 s plus 0.1 s per step.

    >>> cost = TrialCost(1, 0.1)
    >>> affordable_steps(cost, [4, 6], 100, full=1000), affordable_steps(cost, [4, 6], 5, full=1000)
    (56, 0)
    """

    def needed(steps: int) -> float:
        return needed_seconds(cost, trials, steps, full)

    return max(0, bisect_right(range(full + 1), seconds, key=needed) - 1)
