"""Derive a recommendation with confidence intervals from the results of the trials.

Each trial uses a class split: a random division of the classes into training classes and held-out classes to score on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.advise.successive_halving import collect_scores, rank_candidates
from nearfar.metrics.intervals import Interval, interval

BASELINES = ("proxy-anchor", "contrastive")  # the winner is also compared with these if they are candidates
SPEEDUP = 1.1  # ratio of the times per step above which one of two recipes counts as the faster one


@dataclass(frozen=True)
class Comparison:
    """Difference in MAP@R between the winner and another candidate.

    The compared trials have the same number of steps and the same class splits: random divisions of the classes into
    training classes and held-out classes. Of such trials, only the longest are used.

    Attributes:
        other: The candidate that the winner is compared with.
        steps: Number of steps of the compared trials.
        difference: Score of the winner minus score of the other, with its 95% confidence interval over class splits.
    """

    other: str
    steps: int
    difference: Interval


@dataclass(frozen=True)
class CandidateSummary:
    """The longest trials of a candidate.

    Attributes:
        name: The candidate.
        steps: Number of steps of each of these trials.
        splits: Number of class splits in `score`.
        score: Mean MAP@R over the class splits shared by all candidates whose longest trials have this number of steps.
            If they share none, the mean is over the candidate's own splits.
        step_seconds: Time per step in the fastest of these trials.
    """

    name: str
    steps: int
    splits: int
    score: float
    step_seconds: float


@dataclass(frozen=True)
class Recommendation:
    """The outcome of all trials.

    Attributes:
        winner: The best candidate of the last round.
        recommended: The winner or, if `is_too_close`, the faster of winner and runner-up. If these are about equally
            fast, it is the one that comes first in the list of candidates.
        is_too_close: Whether the interval of the difference between the winner and the runner-up includes zero.
        comparisons: The winner compared with the runner-up, then with the baselines.
        summaries: The winner, then the other candidates, those with the longest trials first.
        failed: A dict that maps candidates that failed to their error messages.
    """

    winner: str
    recommended: str
    is_too_close: bool
    comparisons: tuple[Comparison, ...]
    summaries: tuple[CandidateSummary, ...]
    failed: Mapping[str, str]


def resampled_interval(differences: Sequence[float], *, held_out: float) -> Interval:
    """Compute the 95% confidence interval of a mean over random splits of the same classes.

    Such splits are not independent. For n splits with sample variance s^2, n_test held-out classes and n_train training
    classes, the variance of the mean is therefore s^2 (1/n + n_test / n_train) instead of s^2 / n (Nadeau and Bengio,
    Inference for the Generalization Error, Machine Learning 2003).

    Args:
        differences: One value per split.
        held_out: Fraction of the classes that are held out, n_test / (n_test + n_train).

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
        lines: The lines of `trials.jsonl`, as `run_trials` returns them.
        names: Candidates in order of preference. The order decides between candidates that are equally good and fast.
        held_out: Fraction of the classes that trials were scored on.
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
    summaries = _summarize(lines, names)
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


def _summarize(lines: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, CandidateSummary]:
    """Return a dict that maps the name of each candidate to a summary of its longest trials.

    Class splits differ in difficulty. Each score is therefore the mean over the splits shared by all candidates whose
    longest trials have the same number of steps. If they share none, it is the mean over the candidate's own splits.
    """
    trials: dict[str, dict[int, Mapping[str, Any]]] = {}
    for name in names:
        own = [line for line in lines if line["kind"] == "trial" and line["candidate"] == name and "score" in line]
        longest = max((int(line["steps"]) for line in own), default=0)
        if own:
            trials[name] = {int(line["split"]): line for line in own if int(line["steps"]) == longest}
    summaries = {}
    for name, own_trials in trials.items():
        steps = int(next(iter(own_trials.values()))["steps"])
        rivals = [other for other in trials.values() if int(next(iter(other.values()))["steps"]) == steps]
        shared = set.intersection(*(set(other) for other in rivals)) or set(own_trials)
        score = sum(float(own_trials[split]["score"]) for split in shared) / len(shared)
        fastest = min(float(line["step_seconds"]) for line in own_trials.values())
        summaries[name] = CandidateSummary(name, steps, len(shared), score, fastest)
    return summaries


def _choose_faster(pair: Sequence[CandidateSummary]) -> str:
    """Return the name of the second candidate if it is clearly faster, otherwise that of the first."""
    first, second = pair
    return second.name if first.step_seconds > SPEEDUP * second.step_seconds else first.name
