"""Successive halving within a time budget: train all recipes briefly, keep the better half, double the steps, repeat.

The method is from Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization,
AISTATS 2016. We made two changes. The number of steps of a round is planned from the measured times of earlier trials,
so that all rounds fit into the budget. Later rounds repeat each trial on more class splits, which are random divisions
of the classes into training classes and held-out classes: 1 split in the first round, 3 in the last, 2 in between, and
more if there is time left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfar.advise.candidate import Candidate
from nearfar.advise.data import TrialData
from nearfar.advise.schedule import TrialCost, affordable_steps, needed_seconds, planned_splits, round_sizes
from nearfar.advise.trial import Clock, count_full_steps, run_trial
from nearfar.errors import NearfarError
from nearfar.formatting import counted, duration
from nearfar.suites.results import ResultsFile

Record = Mapping[str, Any]
KINDS = ("advise", "probe", "round", "trial")
TRIALS = "trials.jsonl"
PROBE_STEPS = 3
MIN_STEPS = 10  # with fewer steps, the scores of recipes hardly differ
MAX_SPLITS = (5, 10)  # largest number of class splits in every round but the last, and in the last round
MAX_OVERRUN = 2.0  # a comparison that needs up to this multiple of the budget is made all the same
RESERVE = 0.05  # fraction of the remaining time held in reserve, in case trials take longer than estimated


@dataclass(frozen=True)
class Round:
    """The candidates of a round and the number of steps of their trials."""

    candidates: tuple[str, ...]
    steps: int


def run_trials(
    data: TrialData,
    candidates: Sequence[Candidate],
    out: Path,
    *,
    seconds: float,
    say: Callable[[str], object] = print,
    clock: Clock = time.monotonic,
) -> list[dict[str, Any]]:
    """Run all trials within the time budget and return the lines of `out/trials.jsonl`.

    Each trial is written when it ends. Trials that are already in the file are not run again, and their time counts
    toward the budget.

    Args:
        data: The samples.
        candidates: The recipes to compare.
        out: Directory of the results.
        seconds: The time budget.
        say: Called with progress messages.
        clock: Returns the current time in seconds.
    """
    with ResultsFile(out / TRIALS, kinds=KINDS) as file:
        header = {"data": data.manifest.fingerprint, "candidates": [candidate.name for candidate in candidates]}
        if not file.lines:
            file.append({"kind": "advise", **header, "source": data.source, "seconds": data.seconds})
        elif any(file.lines[0].get(key) != value for key, value in header.items()):
            raise NearfarError(f"{file.path} contains trials with other data or other recipes: choose another --out")
        return _SuccessiveHalving(data, candidates, file, seconds, say, clock).run()


class _SuccessiveHalving:
    """One search with successive halving. Its state is derived from `trials.jsonl`, so a search can be resumed."""

    def __init__(
        self,
        data: TrialData,
        candidates: Sequence[Candidate],
        file: ResultsFile,
        seconds: float,
        say: Callable[[str], object],
        clock: Clock,
    ) -> None:
        self.data, self.file, self.say, self.seconds, self.clock = data, file, say, seconds, clock
        self.by_name = {candidate.name: candidate for candidate in candidates}
        self.lines: list[dict[str, Any]] = [*file.lines]
        timed = [float(line["seconds"]) for line in self.lines if "seconds" in line]
        self.deadline = clock() + seconds - (sum(timed) if timed else data.seconds)
        self.sizes = round_sizes(len(candidates))
        self.splits = planned_splits(len(self.sizes))
        self.trials = [size * splits for size, splits in zip(self.sizes, self.splits, strict=True)]

    def run(self) -> list[dict[str, Any]]:
        """Run or resume all rounds. Return the lines of `trials.jsonl`."""
        self._probe()
        rounds = self._rounds()
        for i in range(max(0, len(rounds) - 1), len(self.sizes)):
            if i == len(rounds):
                names = self._best(self.sizes[i])
                rounds.append(Round(names, self._plan_steps(i, names)))
                self._append({"kind": "round", "round": i, "candidates": list(names), "steps": rounds[i].steps})
            current = rounds[i]
            count = len(current.candidates)
            self.say(f"round {i + 1} of {len(self.sizes)}: {count} recipes, {current.steps:,} steps each")
            self._run_round(i, current)
        return self.lines

    @cached_property
    def full(self) -> int:
        """The largest number of steps of a trial: the most that `nearfar train` would run for any working candidate.

        Read it only after `_probe` has found the candidates that fail, because the value is cached.
        """
        return max(count_full_steps(self.by_name[name], self.data) for name in self._working())

    @property
    def _cache(self) -> Path:
        return self.file.path.parent / "cache"

    @property
    def remaining(self) -> float:
        """Seconds of the time budget that are left."""
        return self.deadline - self.clock()

    def _append(self, line: dict[str, Any]) -> None:
        self.file.append(line)
        self.lines.append(line)

    def _rounds(self) -> list[Round]:
        lines = [line for line in self.lines if line["kind"] == "round"]
        return [Round(tuple(line["candidates"]), int(line["steps"])) for line in lines]

    def _run_trial(self, name: str, steps: int, split: int, kind: str = "trial") -> dict[str, Any]:
        candidate = self.by_name[name]
        line = run_trial(candidate, self.data, steps=steps, split=split, cache=self._cache, clock=self.clock)
        line |= {"kind": kind}
        self._append(line)
        return line

    def _probe(self) -> None:
        """Run a few steps of every candidate to measure the time of a step, and report the candidates that fail."""
        done = {line["candidate"] for line in self.lines if line["kind"] == "probe"}
        if not done:
            # The first trial also includes the time for imports and for filling the image cache. Run one trial whose
            # time is not recorded, so that this does not distort the estimates.
            run_trial(next(iter(self.by_name.values())), self.data, steps=1, split=0, cache=self._cache)
        for name in self.by_name:
            if name not in done:
                line = self._run_trial(name, PROBE_STEPS, 0, "probe")
                if "message" in line:
                    self.say(f"{name} failed and is dropped: {line['message']}")

    def _working(self) -> list[str]:
        """Return the candidates that have not failed, in their original order."""
        failed = {line["candidate"]: line["message"] for line in self.lines if "message" in line}
        working = [name for name in self.by_name if name not in failed]
        if not working:
            name, message = next(iter(failed.items()))
            raise NearfarError(f"{self.data.source}: every recipe failed; {name}: {message}")
        return working

    def _cost(self, name: str) -> TrialCost:
        """Estimate the time of a trial of a candidate from its longest trial so far."""
        lines = [line for line in self.lines if line.get("candidate") == name and "score" in line]
        longest = max(lines, key=lambda line: int(line["steps"]))
        step = float(longest["step_seconds"])
        return TrialCost(max(0.0, float(longest["seconds"]) - int(longest["steps"]) * step), step)

    def _mean_cost(self, names: Sequence[str]) -> TrialCost:
        costs = [self._cost(name) for name in names]
        overhead, step = (
            sum(values) / len(costs) for values in zip(*((c.overhead, c.step) for c in costs), strict=True)
        )
        return TrialCost(overhead, step)

    def _plan_steps(self, i: int, names: Sequence[str]) -> int:
        """Return the number of steps per trial in round i, such that this and all later rounds fit into the budget.

        Each trial is assumed to take the mean time of the candidates in `names`. If fewer than MIN_STEPS steps fit,
        return MIN_STEPS, unless this is the first round and the comparison would take longer than MAX_OVERRUN times the
        budget. In this case, raise an error.
        """
        cost, remaining = self._mean_cost(names), self.remaining * (1 - RESERVE)
        steps = affordable_steps(cost, self.trials[i:], remaining, self.full)
        shortest = min(MIN_STEPS, self.full)
        if steps < shortest and i == 0:
            planned = needed_seconds(cost, self.trials, shortest, self.full) / (1 - RESERVE)
            total = self.seconds - self.remaining + planned
            budget = f"--minutes {self.seconds / 60:g}"
            if total > MAX_OVERRUN * self.seconds:
                raise NearfarError(
                    f"{self.data.source}: {budget} allows only {counted(steps, 'step')} per trial, too few to compare "
                    f"recipes: use --minutes {math.ceil(1.1 * total / 60)}, or fewer --recipes"
                )
            self.say(f"{budget} is too short for these recipes: the comparison takes about {duration(total)}")
        return max(shortest, steps)

    def _run_round(self, i: int, current: Round) -> None:
        is_last = i + 1 == len(self.sizes)
        for split in range(MAX_SPLITS[is_last]):
            scores = collect_scores(self.lines)
            names = self._working_in(current)
            missing = [name for name in names if (name, current.steps, split) not in scores]
            # The last round always runs two splits, because an interval needs at least two. Earlier rounds always run
            # their planned splits. Further splits run only if there is time.
            if split >= (2 if is_last else self.splits[i]):
                needed = sum(self._cost(name).seconds(current.steps) for name in missing)
                later = needed_seconds(self._mean_cost(names), self.trials[i + 1 :], 2 * current.steps, self.full)
                if missing and needed + later > self.remaining:
                    return
            for name in missing:
                line = self._run_trial(name, current.steps, split)
                outcome = f"MAP@R {100 * line['score']:.2f}" if "score" in line else f"failed, {line['message']}"
                remaining = f"{duration(max(0.0, self.remaining))} left"
                self.say(f"  split {split + 1}, {name}: {outcome}, {line['seconds']:.1f} s; {remaining}")
        self._working_in(current)

    def _working_in(self, current: Round) -> list[str]:
        """Return the candidates of a round that have not failed; raise an error if there are none."""
        working = self._working()
        names = [name for name in current.candidates if name in working]
        if not names:
            name = current.candidates[0]
            message = next(
                line["message"] for line in self.lines if line.get("candidate") == name and "message" in line
            )
            raise NearfarError(
                f"{self.data.source}: every recipe of this round failed; {name}: {message}. "
                f"To compare only the recipes that still work, pass --recipes '{', '.join(working)}' and another --out"
            )
        return names

    def _best(self, count: int) -> tuple[str, ...]:
        """Return the `count` best candidates of the last round, in their original order.

        Before the first round, all candidates are returned. Candidates that failed are left out.
        """
        working, rounds = self._working(), self._rounds()
        if not rounds:
            return tuple(working)
        ranked = rank_candidates(self.lines, [name for name in rounds[-1].candidates if name in working])
        return tuple(name for name in working if name in ranked[:count])


def collect_scores(lines: Iterable[Record]) -> dict[tuple[str, int, int], float]:
    """Return a dict that maps (candidate, steps, split) to the score of this trial."""
    return {
        (line["candidate"], int(line["steps"]), int(line["split"])): float(line["score"])
        for line in lines
        if line["kind"] == "trial" and "score" in line
    }


def rank_candidates(lines: Sequence[Record], names: Iterable[str]) -> list[str]:
    """Return the candidates sorted by their mean score in the last round, best first.

    The mean is over the class splits on which all of these candidates have a score.
    """
    scores, steps = collect_scores(lines), [int(line["steps"]) for line in lines if line["kind"] == "round"][-1]
    names = list(names)
    splits = [{split for key, length, split in scores if key == name and length == steps} for name in names]
    shared = sorted(set.intersection(*splits)) if splits else []

    def mean(name: str) -> float:
        return sum(scores[name, steps, split] for split in shared) / max(1, len(shared))

    return sorted(names, key=mean, reverse=True)
