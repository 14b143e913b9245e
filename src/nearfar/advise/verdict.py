"""From races to a recommendation that says how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearfar.advise.halving import ranking, scores_of
from nearfar.metrics.intervals import Interval, interval

DEFAULTS = ("proxy-anchor", "contrastive")  # what one would take without asking
QUICKER = 1.1  # a recipe whose step takes this many times less is the faster one


@dataclass(frozen=True)
class Comparison:
    """The winner's MAP@R minus another's, paired over class splits, at the longest races that both have."""

    other: str
    steps: int
    difference: Interval


@dataclass(frozen=True)
class Place:
    """Where a recipe ended: the longest it raced, over how many splits, the mean, and seconds a step."""

    name: str
    steps: int
    splits: int
    score: float
    step_seconds: float


@dataclass(frozen=True)
class Verdict:
    """winner: the best of the last round. recommended: the winner, or where the runner-up is too close to call the
    faster of both. comparisons: with the runner-up first, then with the defaults. failed: messages by name."""

    winner: str
    recommended: str
    too_close: bool
    comparisons: tuple[Comparison, ...]
    places: tuple[Place, ...]
    failed: Mapping[str, str]


def resampled_interval(differences: Sequence[float], *, held_out: float) -> Interval:
    """95% interval of a mean over random splits of the same classes, which are no independent samples.

    Nadeau and Bengio, Inference for the Generalization Error, Machine Learning 2003: the variance of the mean is
    s^2 (1/n + n_test / n_train) and not s^2 / n.

    >>> values = [0.01, 0.02, 0.03]
    >>> round(resampled_interval(values, held_out=0.2).half / interval(values).half, 4)  # sqrt(1 + 3 / 4)
    1.3229
    """
    plain = interval(differences)
    if plain.n == 1:
        return plain
    half = plain.half * math.sqrt(1 + plain.n * held_out / (1 - held_out))
    return Interval(plain.mean, plain.mean - half, plain.mean + half, plain.n)


def verdict_of(lines: Sequence[Mapping[str, Any]], names: Sequence[str], *, held_out: float) -> Verdict:
    """What the races came to; `names` in the order in which one would prefer them, all else being equal."""
    failed = {line["entrant"]: str(line["message"]) for line in lines if "message" in line}
    rounds = [line for line in lines if line["kind"] == "round"]
    finalists = ranking(lines, [name for name in rounds[-1]["entrants"] if name not in failed])
    winner = finalists[0]
    others = dict.fromkeys([*finalists[1:2], *(name for name in DEFAULTS if name in names and name != winner)])
    compared = [_compared(lines, winner, other, held_out) for other in others]
    comparisons = tuple(each for each in compared if each is not None)
    rival = finalists[1] if len(finalists) > 1 else None
    too_close = any(each.other == rival and not each.difference.clear for each in comparisons)
    places = {name: place for name in names if (place := _place(lines, name)) is not None}
    pair = [name for name in names if name in (winner, rival)]
    recommended = _faster([places[name] for name in pair]) if too_close else winner
    ranked = sorted(places.values(), key=lambda each: (each.name == winner, each.steps, each.score), reverse=True)
    return Verdict(winner, recommended, too_close, comparisons, tuple(ranked), failed)


def _compared(lines: Iterable[Mapping[str, Any]], winner: str, other: str, held_out: float) -> Comparison | None:
    scores = scores_of(lines)
    both = {(steps, split) for name, steps, split in scores if name == winner and (other, steps, split) in scores}
    if not both:
        return None
    longest = max(steps for steps, _ in both)
    splits = sorted(split for steps, split in both if steps == longest)
    differences = [scores[winner, longest, split] - scores[other, longest, split] for split in splits]
    return Comparison(other, longest, resampled_interval(differences, held_out=held_out))


def _place(lines: Iterable[Mapping[str, Any]], name: str) -> Place | None:
    mine = [line for line in lines if line["kind"] == "race" and line["entrant"] == name and "score" in line]
    if not mine:
        return None
    steps = max(int(line["steps"]) for line in mine)
    longest = [line for line in mine if line["steps"] == steps]
    score = sum(float(line["score"]) for line in longest) / len(longest)
    return Place(name, steps, len(longest), score, min(float(line["step_seconds"]) for line in longest))


def _faster(places: Sequence[Place]) -> str:
    """The faster where one is clearly so, else the first."""
    first, second = places
    return second.name if first.step_seconds > QUICKER * second.step_seconds else first.name
