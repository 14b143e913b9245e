"""The objective against a loop, its gradient against differences, and its identities."""

from __future__ import annotations

import numpy as np
import pytest

from nearfar.pacing.objective import WeightProblem, maw, sdaw
from pacing.problems import loop_value, random_problem


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize(("samples", "classes"), [(14, 2), (17, 6), (9, 9)])
def test_value_and_gradient(samples: int, classes: int, mu: float) -> None:
    problem = random_problem(3, samples=samples, classes=classes, mu=mu)
    w = np.random.default_rng(0).random(samples)
    assert problem.value(w) == pytest.approx(loop_value(problem, w), rel=1e-12)
    unit = np.eye(samples)
    # the objective is quadratic: central differences are exact but for rounding
    slopes = [(problem.value(w + e) - problem.value(w - e)) / 2 for e in unit]
    np.testing.assert_allclose(problem.gradient(w), slopes, rtol=1e-9, atol=1e-11)
    curves = [problem.value(w + e) - 2 * problem.value(w) + problem.value(w - e) for e in unit]
    np.testing.assert_allclose(curves, 2 * mu / problem.sizes[problem.labels] ** 2, atol=1e-11)


def test_balance_is_zero_between_equal_classes() -> None:
    problem = random_problem(0, samples=12, classes=3, mu=5.0)
    assert np.abs(problem.balance(problem.sums(np.full(12, 0.3)))).max() < 1e-12
    w = np.where(problem.labels == 0, 1.0, 0.3)
    assert problem.balance(problem.sums(w))[0] > 0 > problem.balance(problem.sums(w))[1]


def test_classes_of_one_have_no_positive_term() -> None:
    with_pos = WeightProblem.of([9.0, 1.0, 1.0], [0.1, 0.1, 0.1], [0, 1, 1], age=1.0, mu=0.0)
    without = WeightProblem.of([0.0, 1.0, 1.0], [0.1, 0.1, 0.1], [0, 1, 1], age=1.0, mu=0.0)
    assert with_pos.value(np.ones(3)) == pytest.approx(without.value(np.ones(3)))


def test_residual_is_zero_only_where_stationary() -> None:
    problem = WeightProblem.of([1.0] * 4, [0.0] * 4, [0, 0, 1, 1], age=10.0, mu=0.0)
    assert problem.residual(np.ones(4)) == 0  # at the bound, the slope points outwards
    assert problem.residual(np.array([1.0, 1.0, 1.0, 0.5])) == 0.5


def test_maw_and_sdaw_are_over_classes() -> None:
    assert maw([1, 1, 1, 0], [4, 4, 4, 8]) == 0.5
    assert sdaw([1, 1, 1, 0], [4, 4, 4, 8]) == 0.5


def test_bad_problems() -> None:
    with pytest.raises(ValueError, match="at least 2 classes, got 1"):
        WeightProblem.of([1.0], [1.0], [3], age=1.0, mu=1.0)
    with pytest.raises(ValueError, match="mu must be at least 0, got -1"):
        WeightProblem.of([1.0, 1.0], [1.0, 1.0], [3, 4], age=1.0, mu=-1)
