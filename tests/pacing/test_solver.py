"""Our solver: it never goes up, ends stationary, finds what a search through all sets finds, and beats Algorithm 3."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from nearfar.pacing.class_sets import best_sets, classes_by_size
from nearfar.pacing.coordinate import coordinate_descent
from nearfar.pacing.objective import WeightProblem
from nearfar.pacing.solver import class_blocks, solve
from pacing.problems import random_problem


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(("samples", "classes"), [(40, 2), (300, 7), (300, 120), (900, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_never_up_and_stationary_at_the_end(samples: int, classes: int, mu: float, seed: int) -> None:
    problem = random_problem(seed, samples=samples, classes=classes, mu=mu)
    start = np.random.default_rng(seed).random(samples)
    solution = solve(problem, start)
    assert solution.trace[0] == problem.value(start)
    assert solution.value == problem.value(solution.weights)
    assert max(np.diff(solution.trace)) <= 1e-12 * abs(solution.value)
    assert solution.value < solution.trace[0]
    assert ((solution.weights >= 0) & (solution.weights <= 1)).all()
    assert solution.residual <= 1e-6
    assert problem.residual(solution.weights) == solution.residual
    if mu == 0:
        assert np.isin(solution.weights, (0, 1)).all()


@pytest.mark.parametrize(("mu", "most"), [(1.0, 12), (10.0, 20), (100.0, 60)])
def test_few_sweeps_with_small_and_large_classes(mu: float, most: int) -> None:
    """With a large mu, single weights move little: without fills and shifts, mu = 100 does not end in 300 sweeps."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(100), rng.integers(5, 61, 100))
    problem = WeightProblem.of(rng.gamma(2, 0.5, len(labels)), rng.gamma(2, 0.5, len(labels)), labels, age=2.0, mu=mu)
    solution = solve(problem, rng.random(len(labels)))
    assert len(solution.trace) <= most
    assert solution.residual <= 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_best_of_all_sets(seed: int) -> None:
    """mu = 0 has a best solution of zeros and ones; at 9 samples all 512 can be tried."""
    problem = random_problem(seed, samples=9, classes=3, mu=0.0, age=1.2)
    best = min(problem.value(np.array(bits, float)) for bits in product((0, 1), repeat=9))
    found = solve(problem, np.ones(9)).value
    assert found >= best - 1e-12
    assert found <= best + 0.02 * abs(best)


def test_best_set_of_a_class_is_the_best_of_all() -> None:
    for seed in range(10):
        problem = random_problem(seed, samples=16, classes=3, mu=0.4, age=1.2)
        w = np.random.default_rng(seed).random(16)
        target = best_sets(problem, w, problem.sums(w), classes_by_size(problem.labels))
        for c in range(3):
            rows = problem.labels == c
            tries = []
            for bits in product((0.0, 1.0), repeat=int(rows.sum())):
                one = w.copy()
                one[rows] = bits
                tries.append(problem.value(one))
            ours = np.where(rows, target, w)
            assert problem.value(ours) == pytest.approx(min([*tries, problem.value(w)]), abs=1e-10)


def test_large_classes_try_some_sizes_and_use_few_blocks() -> None:
    problem = random_problem(0, samples=2000, classes=3, mu=0.5)
    assert len(class_blocks(problem.labels)) == 256
    assert sorted(np.concatenate(class_blocks(problem.labels))) == list(range(2000))
    assert sorted(np.concatenate([t.ravel() for t in classes_by_size(problem.labels)])) == list(range(2000))
    solution = solve(problem, np.ones(2000))
    assert solution.residual <= 1e-6
    assert max(np.diff(solution.trace)) <= 1e-12 * abs(solution.value)


@pytest.mark.parametrize("mu", [0.0, 1.0])
@pytest.mark.parametrize("classes", [10, 100, 250])
def test_no_worse_than_50_n_steps_of_algorithm_3(mu: float, classes: int) -> None:
    better = 0
    for seed in range(3):
        problem = random_problem(seed, samples=500, classes=classes, mu=mu)
        start = np.random.default_rng(seed).random(500)
        theirs = coordinate_descent(problem, start, steps=50 * 500, seed=seed)
        better += solve(problem, start).value <= problem.value(theirs)
    assert better == 3


def test_extreme_ages() -> None:
    problem = random_problem(0, samples=50, classes=5, mu=0.0)
    assert solve(problem.at_age(100.0), np.zeros(50)).weights.min() == 1
    assert solve(problem.at_age(0.0), np.ones(50)).weights.max() == 0


def test_order_of_the_samples_does_not_matter_much() -> None:
    problem = random_problem(0, samples=200, classes=20, mu=1.0)
    order = np.random.default_rng(0).permutation(200)
    turned = WeightProblem.of(problem.pos[order], problem.neg[order], problem.labels[order], age=1.8, mu=1.0)
    a, b = solve(problem, np.ones(200)).value, solve(turned, np.ones(200)).value
    assert a == pytest.approx(b, rel=2e-3)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (np.ones(3), r"start must have shape \[50\], got shape \[3\]"),
        (np.full(50, 1.5), "start must have weights between 0 and 1, got 1.5"),
        (np.full(50, np.nan), "start must have weights between 0 and 1, got nan"),
    ],
)
def test_bad_start(start: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(random_problem(0, samples=50, classes=5, mu=0.0), start)
