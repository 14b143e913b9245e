"""From trials to a recommendation with a confidence interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.advise.successive_halving import collect_scores, rank_candidates
from nearfar.metrics.intervals import Interval, interval

BASELINES = ("proxy-anchor", "contrastive")  # the winner is always compared with these
SPEEDUP = 1.1  # a recipe counts as faster if the step of the other takes at least this many times as long


@dataclass(frozen=True)
class Comparison:
    """Difference in MAP@R between the winner and another candidate.

    The difference is paired over class splits, at the longest trials that both have.
    """

    other: str
    steps: int
    difference: Interval


@dataclass(frozen=True)
class CandidateSummary:
    """The longest trials of a candidate: their length, the number of splits, the mean score, the time per step."""

    name: str
    steps: int
    splits: int
    score: float
    step_seconds: float


@dataclass(frozen=True)
class Recommendation:
    """The outcome of all trials.

    Attributes:
        winner: the best candidate of the last round.
        recommended: the winner, or the faster of the winner and the runner-up if their difference is not significant.
        is_too_close: whether the interval of the difference from the runner-up includes zero.
        comparisons: the winner against the runner-up, then against the baselines.
        summaries: the candidates, best first.
        failed: error messages by candidate.
    """

    winner: str
    recommended: str
    is_too_close: bool
    comparisons: tuple[Comparison, ...]
    summaries: tuple[CandidateSummary, ...]
    failed: Mapping[str, str]


def resampled_interval(differences: Sequence[float], *, held_out: float) -> Interval:
    """Compute the 95% interval of a mean over random splits of the same classes, which are not independent.

    The variance of the mean is s^2 (1/n + n_test / n_train) instead of s^2 / n (Nadeau and Bengio, Inference for the
    Generalization Error, Machine Learning 2003).

    >>> values = [0.01, 0.02, 0.03]
    >>> round(resampled_interval(values, held_out=0.2).half / interval(values).half, 4)  # sqrt(1 + 3 / 4)
    1.3229
    """
    plain = interval(differences)
    if plain.n == 1:
        return plain
    half = plain.half * math.sqrt(1 + plain.n * held_out / (1 - held_out))
    return Interval(plain.mean, plain.mean - half, plain.mean + half, plain.n)


def recommend(lines: Sequence[Mapping[str, Any]], names: Sequence[str], *, held_out: float) -> Recommendation:
    """Return the recommendation that the trials support.

    Args:
        lines: the lines of `trials.jsonl`, as `run_trials` returns them.
        names: candidates in order of preference, which decides between equally good and fast ones.
        held_out: fraction of the classes that trials were scored on.
    """
    failed = {line["candidate"]: str(line["message"]) for line in lines if "message" in line}
    rounds = [line for line in lines if line["kind"] == "round"]
    finalists = rank_candidates(lines, [name for name in rounds[-1]["candidates"] if name not in failed])
    winner = finalists[0]
    others = dict.fromkeys([*finalists[1:2], *(name for name in BASELINES if name in names and name != winner)])
    compared = (_compare(lines, winner, other, held_out) for other in others)
    comparisons = tuple(comparison for comparison in compared if comparison is not None)
    runner_up = finalists[1] if len(finalists) > 1 else None
    is_too_close = any(c.other == runner_up and not c.difference.excludes_zero for c in comparisons)
    summaries = {name: summary for name in names if (summary := _summarize(lines, name)) is not None}
    pair = [summaries[name] for name in names if name in (winner, runner_up)]
    recommended = _choose_faster(pair) if is_too_close else winner
    ranked = sorted(summaries.values(), key=lambda s: (s.name == winner, s.steps, s.score), reverse=True)
    return Recommendation(winner, recommended, is_too_close, comparisons, tuple(ranked), failed)


def _compare(lines: Iterable[Mapping[str, Any]], winner: str, other: str, held_out: float) -> Comparison | None:
    scores = collect_scores(lines)
    shared = {(steps, split) for name, steps, split in scores if name == winner and (other, steps, split) in scores}
    if not shared:
        return None
    longest = max(steps for steps, _ in shared)
    splits = sorted(split for steps, split in shared if steps == longest)
    differences = [scores[winner, longest, split] - scores[other, longest, split] for split in splits]
    return Comparison(other, longest, resampled_interval(differences, held_out=held_out))


def _summarize(lines: Iterable[Mapping[str, Any]], name: str) -> CandidateSummary | None:
    trials = [line for line in lines if line["kind"] == "trial" and line["candidate"] == name and "score" in line]
    if not trials:
        return None
    steps = max(int(line["steps"]) for line in trials)
    longest = [line for line in trials if line["steps"] == steps]
    score = sum(float(line["score"]) for line in longest) / len(longest)
    return CandidateSummary(name, steps, len(longest), score, min(float(line["step_seconds"]) for line in longest))


def _choose_faster(pair: Sequence[CandidateSummary]) -> str:
    """Return the second candidate if it is clearly faster, else the first."""
    first, second = pair
    return second.name if first.step_seconds > SPEEDUP * second.step_seconds else first.name
