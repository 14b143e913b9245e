"""Successive halving in a time budget: all recipes for a few steps, the better half for twice as many, and so on.

Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016. Ours: the
length of a round is planned from the measured time of the races so far, so that all rounds end within the budget; and
later rounds see more splits of the classes (1, then 2, 3 in the last), more where time is left.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfar.advise.data import Course
from nearfar.advise.entrant import Entrant
from nearfar.advise.race import Clock, full_length, race
from nearfar.errors import NearfarError
from nearfar.formatting import duration
from nearfar.suites.results import ResultsFile

Record = Mapping[str, Any]
KINDS = ("advise", "probe", "round", "race")
PROBE_STEPS = 3
SHORTEST = 10  # steps that can tell recipes apart at all
MOST_SPLITS = (5, 10)  # in a round before the last, and in the last
RESERVE = 0.05  # of the time, for what the plan does not see


@dataclass(frozen=True)
class Cost:
    """Seconds of a race: overhead + steps * step."""

    overhead: float
    step: float

    def of(self, steps: int) -> float:
        """For a race of this length."""
        return self.overhead + steps * self.step


@dataclass(frozen=True)
class Round:
    """Who races for how many steps."""

    entrants: tuple[str, ...]
    steps: int


def round_sizes(entrants: int) -> list[int]:
    """How many race in each round, down to two.

    >>> round_sizes(8), round_sizes(5), round_sizes(2)
    ([8, 4, 2], [5, 3, 2], [2])
    """
    sizes = [entrants]
    while sizes[-1] > 2:
        sizes.append((sizes[-1] + 1) // 2)
    return sizes


def planned_splits(rounds: int) -> list[int]:
    """Splits of the classes in each round: one at first, two, and three in the last.

    >>> planned_splits(4), planned_splits(1)
    ([1, 2, 2, 3], [3])
    """
    return [*[1, *([2] * rounds)][: rounds - 1], 3]


def needed_seconds(cost: Cost, races: Sequence[int], steps: int, full: int) -> float:
    """Of rounds with so many races each, the first of this length, every other twice as long as the one before it.

    >>> needed_seconds(Cost(1, 0.1), [4, 6], 10, full=15)
    23.0
    """
    return sum(count * cost.of(min(full, steps * 2**i)) for i, count in enumerate(races))


def affordable_steps(cost: Cost, races: Sequence[int], seconds: float, full: int) -> int:
    """The largest length of the first round, at most `full`, with which all of them fit into the time.

    >>> affordable_steps(Cost(1, 0.1), [4, 6], 100, full=1000), affordable_steps(Cost(1, 0.1), [4, 6], 5, full=1000)
    (56, 0)
    """

    def needed(steps: int) -> float:
        return needed_seconds(cost, races, steps, full)

    return max(0, bisect_right(range(full + 1), seconds, key=needed) - 1)


def race_all(
    course: Course,
    entrants: Sequence[Entrant],
    out: Path,
    *,
    seconds: float,
    say: Callable[[str], object] = print,
    clock: Clock = time.monotonic,
) -> list[dict[str, Any]]:
    """All races within the time, each a line of out/races.jsonl when it is over; gives these lines.

    What is there is not raced again, and the time that it took counts. clock: what tells the time.
    """
    with ResultsFile(out / "races.jsonl", kinds=KINDS) as file:
        asked = {"data": course.manifest.fingerprint, "entrants": [each.name for each in entrants]}
        if not file.lines:
            file.append({"kind": "advise", **asked, "source": course.source, "seconds": course.seconds})
        elif any(file.lines[0].get(key) != value for key, value in asked.items()):
            raise NearfarError(f"{file.path}: holds races of other data or recipes: choose another --out")
        return _Races(course, entrants, file, seconds, say, clock).run()


class _Races:
    """Where the races stand."""

    def __init__(
        self,
        course: Course,
        entrants: Sequence[Entrant],
        file: ResultsFile,
        seconds: float,
        say: Callable[[str], object],
        clock: Clock,
    ) -> None:
        self.course, self.file, self.say, self.seconds, self.clock = course, file, say, seconds, clock
        self.by_name = {each.name: each for each in entrants}
        self.lines: list[dict[str, Any]] = [*file.lines]
        timed = [float(line["seconds"]) for line in self.lines if "seconds" in line]
        self.deadline = clock() + seconds - (sum(timed) if timed else course.seconds)
        self.sizes = round_sizes(len(entrants))
        self.splits = planned_splits(len(self.sizes))
        self.races = [size * splits for size, splits in zip(self.sizes, self.splits, strict=True)]

    def run(self) -> list[dict[str, Any]]:
        """From where they stand to the end."""
        self._probe()
        rounds = self._rounds()
        for i in range(max(0, len(rounds) - 1), len(self.sizes)):
            if i == len(rounds):
                now = Round(self._best(self.sizes[i]), self._steps(i, self._best(self.sizes[i])))
                self._append({"kind": "round", "round": i, "entrants": list(now.entrants), "steps": now.steps})
                rounds.append(now)
            now = rounds[i]
            self.say(f"round {i + 1} of {len(self.sizes)}: {len(now.entrants)} recipes, {now.steps:,} steps each")
            self._round(i, now)
        return self.lines

    @cached_property
    def full(self) -> int:
        """The steps that no race exceeds; asked for after the probe, which leaves out what cannot run."""
        return max(full_length(self.by_name[name], self.course) for name in self._running())

    @property
    def _cache(self) -> Path:
        return self.file.path.parent / "cache"

    @property
    def left(self) -> float:
        """Seconds."""
        return self.deadline - self.clock()

    def _append(self, line: dict[str, Any]) -> None:
        self.file.append(line)
        self.lines.append(line)

    def _rounds(self) -> list[Round]:
        found = [line for line in self.lines if line["kind"] == "round"]
        return [Round(tuple(line["entrants"]), int(line["steps"])) for line in found]

    def _race(self, name: str, steps: int, split: int, kind: str = "race") -> dict[str, Any]:
        entrant = self.by_name[name]
        line = race(entrant, self.course, steps=steps, split=split, cache=self._cache, clock=self.clock)
        line |= {"kind": kind}
        self._append(line)
        return line

    def _probe(self) -> None:
        """A few steps of every recipe, to know how long they take."""
        done = {line["entrant"] for line in self.lines if line["kind"] == "probe"}
        if not done:
            first = next(iter(self.by_name.values()))  # what only the first race pays for, a decoded cache with it
            race(first, self.course, steps=1, split=0, cache=self._cache)
        for name in self.by_name:
            if name not in done:
                line = self._race(name, PROBE_STEPS, 0, "probe")
                if "message" in line:
                    self.say(f"{name} is out: {line['message']}")

    def _running(self) -> list[str]:
        """Those that never failed, in the order in which they were named."""
        failed = {line["entrant"]: line["message"] for line in self.lines if "message" in line}
        found = [name for name in self.by_name if name not in failed]
        if not found:
            name, message = next(iter(failed.items()))
            raise NearfarError(f"{self.course.source}: no recipe runs on it; {name} says: {message}")
        return found

    def _cost(self, name: str) -> Cost:
        """By the longest race so far."""
        lines = [line for line in self.lines if line.get("entrant") == name and "score" in line]
        longest = max(lines, key=lambda line: int(line["steps"]))
        step = float(longest["step_seconds"])
        return Cost(max(0.0, float(longest["seconds"]) - int(longest["steps"]) * step), step)

    def _mean_cost(self, names: Sequence[str]) -> Cost:
        costs = [self._cost(name) for name in names]
        return Cost(sum(each.overhead for each in costs) / len(costs), sum(each.step for each in costs) / len(costs))

    def _steps(self, i: int, names: Sequence[str]) -> int:
        """The length of a round. Who will race later is open: their cost is the mean of those who race now."""
        cost, left = self._mean_cost(names), self.left * (1 - RESERVE)
        steps = affordable_steps(cost, self.races[i:], left, self.full)
        shortest = min(SHORTEST, self.full)
        if steps < shortest and i == 0:
            need = self.seconds - self.left + needed_seconds(cost, self.races, shortest, self.full) / (1 - RESERVE)
            raise NearfarError(
                f"{self.course.source}: {self.seconds / 60:g} minutes allow {steps} steps a race, which tells nothing: "
                f"take --minutes {math.ceil(1.1 * need / 60)}, or fewer --recipes"
            )
        return max(shortest, steps)

    def _round(self, i: int, now: Round) -> None:
        last = i + 1 == len(self.sizes)
        for split in range(MOST_SPLITS[last]):
            there = scores_of(self.lines)
            names = self._still(now)
            missing = [name for name in names if (name, now.steps, split) not in there]
            if split >= (2 if last else self.splits[i]):  # two of the last make an interval; the rest where it fits
                need = sum(self._cost(name).of(now.steps) for name in missing)
                later = needed_seconds(self._mean_cost(names), self.races[i + 1 :], 2 * now.steps, self.full)
                if missing and need + later > self.left:
                    return
            for name in missing:
                line = self._race(name, now.steps, split)
                told = f"MAP@R {100 * line['score']:.2f}" if "score" in line else f"failed, {line['message']}"
                left = f"{duration(max(0.0, self.left))} left"
                self.say(f"  split {split + 1}, {name}: {told}, {line['seconds']:.1f} s; {left}")
        self._still(now)

    def _still(self, now: Round) -> list[str]:
        """Who of a round runs; an error where nobody does."""
        running = self._running()
        found = [name for name in now.entrants if name in running]
        if not found:
            name = now.entrants[0]
            message = next(line["message"] for line in self.lines if line.get("entrant") == name and "message" in line)
            raise NearfarError(
                f"{self.course.source}: every recipe of this round failed; {name} says: {message}. "
                f"Race others, in another --out: {', '.join(running)} still run"
            )
        return found

    def _best(self, count: int) -> tuple[str, ...]:
        """The best of the last round, or all that run, in the order in which they were named."""
        running, rounds = self._running(), self._rounds()
        if not rounds:
            return tuple(running)
        ranked = ranking(self.lines, [name for name in rounds[-1].entrants if name in running])
        return tuple(name for name in running if name in ranked[:count])


def scores_of(lines: Iterable[Record]) -> dict[tuple[str, int, int], float]:
    """Scores by entrant, steps and split."""
    return {
        (line["entrant"], int(line["steps"]), int(line["split"])): float(line["score"])
        for line in lines
        if line["kind"] == "race" and "score" in line
    }


def ranking(lines: Sequence[Record], names: Iterable[str]) -> list[str]:
    """The best first, by the mean at the last round's length over the splits that all of them have."""
    scores, steps = scores_of(lines), [int(line["steps"]) for line in lines if line["kind"] == "round"][-1]
    wanted = list(names)
    by_name = {name: {s for n, b, s in scores if n == name and b == steps} for name in wanted}
    shared = sorted(set.intersection(*by_name.values())) if by_name else []

    def mean(name: str) -> float:
        return sum(scores[name, steps, split] for split in shared) / max(1, len(shared))

    return sorted(wanted, key=mean, reverse=True)
