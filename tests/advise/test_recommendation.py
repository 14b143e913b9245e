"""From trials to a recommendation."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from nearfar.advise.recommendation import recommend, resampled_interval


def trial(name: str, steps: int, split: int, score: float, step: float = 0.01) -> dict[str, Any]:
    place = {"kind": "trial", "candidate": name, "steps": steps, "split": split}
    return {**place, "score": score, "seconds": 1.0, "step_seconds": step}


def lines_of(a: list[float], b: list[float], *, quick: float = 0.01) -> list[dict[str, Any]]:
    """Two finalists after a first round with proxy-anchor."""
    first = [trial(name, 10, 0, score) for name, score in (("a", 0.3), ("b", 0.3), ("proxy-anchor", 0.1))]
    last = [trial("a", 20, i, each) for i, each in enumerate(a)] + [
        trial("b", 20, i, v, quick) for i, v in enumerate(b)
    ]
    return [
        {"kind": "round", "round": 0, "candidates": ["a", "b", "proxy-anchor"], "steps": 10},
        *first,
        {"kind": "round", "round": 1, "candidates": ["a", "b"], "steps": 20},
        *last,
    ]


NAMES = ["a", "b", "proxy-anchor"]


def test_clear_winner_is_recommended_even_if_slow() -> None:
    found = recommend(lines_of([0.20, 0.21, 0.22], [0.30, 0.31, 0.33], quick=9.0), NAMES, held_out=0.2)
    assert (found.winner, found.recommended, found.is_too_close) == ("b", "b", False)
    rival, default = found.comparisons
    assert (rival.other, rival.steps, rival.difference.n) == ("a", 20, 3)
    assert rival.difference.mean == pytest.approx((0.10 + 0.10 + 0.11) / 3)
    assert (default.other, default.steps, default.difference.n) == ("proxy-anchor", 10, 1)
    assert not default.difference.excludes_zero
    assert [each.name for each in found.summaries] == ["b", "a", "proxy-anchor"]


@pytest.mark.parametrize(("quick", "expected"), [(0.005, "b"), (0.0098, "a"), (0.02, "a")])
def test_close_call_recommends_the_faster_or_first(quick: float, expected: str) -> None:
    found = recommend(lines_of([0.30, 0.31, 0.32], [0.31, 0.30, 0.325], quick=quick), NAMES, held_out=0.2)
    assert found.is_too_close
    assert (found.winner, found.recommended) == ("b", expected)


def test_one_split_is_too_close_and_a_single_finalist_wins() -> None:
    assert recommend(lines_of([0.1], [0.9]), NAMES, held_out=0.2).is_too_close
    alone = lines_of([0.3, 0.3], [0.2, 0.2])
    alone.append({"kind": "trial", "candidate": "b", "steps": 20, "split": 2, "message": "it broke", "seconds": 1.0})
    found = recommend(alone, NAMES, held_out=0.2)
    assert (found.winner, found.recommended, found.is_too_close) == ("a", "a", False)
    assert found.failed == {"b": "it broke"}


def test_interval_follows_nadeau_and_bengio() -> None:
    values = [0.013, -0.002, 0.021, 0.008]
    found = resampled_interval(values, held_out=0.25)
    s = stats.tstd(values)
    half = stats.t.ppf(0.975, 3) * s * math.sqrt(1 / 4 + 0.25 / 0.75)
    assert (found.low, found.high) == pytest.approx((0.01 - half, 0.01 + half))


def test_scores_are_means_over_the_same_splits() -> None:
    """The third split is hard. Without pairing, the candidate that was not scored on it would look better."""
    found = recommend(lines_of([0.78, 0.79], [0.79, 0.80, 0.55]), NAMES, held_out=0.2)
    assert found.winner == "b"
    by_name = {each.name: each for each in found.summaries}
    assert (by_name["a"].splits, by_name["b"].splits) == (2, 2)
    assert by_name["b"].score - by_name["a"].score == pytest.approx(0.01)
    assert [each.name for each in found.summaries][:2] == ["b", "a"]
