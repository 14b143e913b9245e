"""Shares and ages over the rounds, and that a share is what is kept."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.pacing.schedule import AgeSchedule, make_schedule, select_easiest, share_count, solve_for_share
from nearfar.pacing.solver import solve
from pacing.problems import random_problem


def test_numbers_follow_the_printed_rule() -> None:
    by_age = make_schedule(share=0.7, age=2.0, growth=1.5, most=5.0)
    age, ages = 2.0, []
    for _ in range(5):
        ages.append(age)
        age = min(1.5 * age, 5.0)
    assert [by_age.at(t) for t in range(5)] == pytest.approx(ages)
    assert by_age.at(10**9) == 5.0


def test_shares_end_at_the_cap() -> None:
    assert make_schedule(share=0.7, age=None, growth=1.05, most=None) == AgeSchedule(0.7, 1.05, 0.95)
    assert make_schedule(share=0.99, age=None, growth=1.05, most=None).at(3) == 0.99
    assert make_schedule(share=0.7, age=None, growth=1.0, most=0.9).at(1000) == pytest.approx(0.7)


def test_naive_quantile_excludes_nobody_and_ours_does() -> None:
    problem = random_problem(0, samples=400, classes=20, mu=0.0)
    naive = float(np.quantile(problem.hardness(np.ones(400)), 0.8))
    w0, age = select_easiest(problem, 0.8)
    assert w0.sum() == 320
    assert age < naive
    assert (problem.hardness(w0) <= age).sum() == 320
    assert solve(problem.at_age(age), w0).weights.mean() < solve(problem.at_age(naive), np.ones(400)).weights.mean()


@pytest.mark.parametrize("mu", [0.0, 1.0])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_share_is_kept(share: float, mu: float) -> None:
    problem = random_problem(1, samples=2000, classes=40, mu=mu)
    solution, age = solve_for_share(problem, share)
    assert solution.weights.mean() == pytest.approx(share, abs=0.003)
    assert solution.residual <= 1e-6
    assert problem.at_age(age).value(solution.weights) == solution.value


def test_at_least_one_sample() -> None:
    assert share_count(0.001, 10) == 1
    assert share_count(1.0, 10) == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 0.0}, "share is a fraction of the samples and must be above 0 and at most 1"),
        ({"most": 1.2}, "most is a fraction of the samples and must be above 0 and at most 1"),
        ({"growth": 0.0}, "growth must be a finite number above 0"),
        ({"age": -1.0}, "age must be a finite number above 0"),
    ],
)
def test_bad_options(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_schedule(**({"share": 0.7, "age": None, "growth": 1.05, "most": None} | options))
