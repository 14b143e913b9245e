"""Algorithm 3: what it draws, and that it goes down."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.pacing.coordinate import _draw_distinct, _draws, coordinate_descent
from nearfar.pacing.objective import WeightProblem
from pacing.problems import random_problem


def test_draws_are_different_samples_of_the_right_classes() -> None:
    problem = random_problem(0, samples=60, classes=9, mu=1.0)
    draws = list(_draws(problem, 5000, 4, 3, np.random.default_rng(0)))
    assert {a for a, _, _ in draws} == set(range(60))
    for a, pos, neg in draws:
        c = problem.labels[a]
        assert len(pos) == len(set(pos)) == min(3, problem.sizes[c] - 1)
        assert a not in pos
        assert (problem.labels[pos] == c).all()
        kinds = problem.labels[neg]
        assert len(neg) == len(set(neg))
        assert c not in kinds
        assert len(set(kinds)) == 4
        assert all((kinds == k).sum() == min(3, problem.sizes[k]) for k in set(kinds))


def test_draws_are_uniform() -> None:
    chosen = _draw_distinct(np.full(60_000, 5), 2, np.random.default_rng(0))
    pairs = np.bincount(chosen.min(1) * 5 + chosen.max(1), minlength=25)
    assert np.count_nonzero(pairs) == 10
    assert np.abs(pairs[pairs > 0] - 6000).max() < 400  # 5 standard deviations


def test_all_drawn_is_the_exact_coordinate_step() -> None:
    rng = np.random.default_rng(1)
    problem = WeightProblem.of(rng.random(12), rng.random(12), np.arange(12) % 3, age=0.6, mu=0.5)
    w0 = rng.random(12)
    after = coordinate_descent(problem, w0, steps=1, classes=99, per_class=99, rate=0.7)
    (a,) = np.flatnonzero(after != w0)
    assert after[a] == pytest.approx(np.clip(w0[a] - 0.7 * problem.gradient(w0)[a], 0, 1), abs=1e-12)


def test_goes_down_the_same_way_every_time() -> None:
    problem = random_problem(0, samples=300, classes=10, mu=1.0)
    w0, seen = np.random.default_rng(0).random(300), []
    w = coordinate_descent(problem, w0, steps=3000, trace=lambda t, at: seen.append((t, problem.value(at))))
    assert [t for t, _ in seen] == list(range(300, 3001, 300))
    assert problem.value(w) == seen[-1][1] < seen[0][1] < problem.value(w0)
    np.testing.assert_array_equal(w, coordinate_descent(problem, w0, steps=3000))
    assert (w != coordinate_descent(problem, w0, steps=3000, seed=1)).any()
    slow = coordinate_descent(problem, w0, steps=3000, rate=lambda t: 15 / (1 + t / 300))
    assert ((slow >= 0) & (slow <= 1)).all()
