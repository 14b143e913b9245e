"""Pairs, thresholds and error rates against slow loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearfar.metrics.verification import (
    Pairs,
    collect_pairs,
    equal_error_rate,
    find_threshold,
    measure_operating_points,
    rejected_share,
)
from nearfar.ops.geometry import unit


def samples(seed: int = 0, classes: int = 6) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), rng.integers(1, 9, classes))
    centers = rng.normal(size=(classes, 5))
    return unit(torch.from_numpy(centers[labels] + rng.normal(size=(len(labels), 5)))), labels


def test_all_pairs_are_those_of_two_loops() -> None:
    vectors, labels = samples()
    order = np.random.default_rng(1).permutation(len(labels))
    vectors, labels = vectors[order], labels[order]
    same, different = collect_pairs(vectors, labels)
    expected: dict[bool, list[tuple[float, int, int]]] = {True: [], False: []}
    for i in range(len(labels)):
        for j in range(i):
            a, b = sorted((int(labels[i]), int(labels[j])))
            expected[a == b].append((1 - float(vectors[i] @ vectors[j]), a, b))
    for pairs, wanted in ((same, expected[True]), (different, expected[False])):
        assert len(pairs) == len(wanted)
        np.testing.assert_allclose(pairs.distance, sorted(d for d, _, _ in wanted), atol=1e-12)
        names = sorted(tuple(sorted(p)) for p in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
        assert names == sorted((a, b) for _, a, b in wanted)


def test_a_sample_of_pairs_has_the_error_rates_of_all_pairs() -> None:
    vectors, labels = samples(2, classes=40)
    every, drawn = (collect_pairs(vectors, labels, limit=limit) for limit in (10**6, 5000))
    assert [len(pairs) for pairs in drawn] == [min(5000, len(pairs)) for pairs in every]
    assert (drawn[1].first != drawn[1].second).all()
    threshold = find_threshold(every[1].distance, 0.1)
    assert rejected_share(drawn[1].distance, threshold) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("fmr", [0.01, 0.1, 0.25, 0.5, 0.99])
def test_the_threshold_is_the_largest_with_at_most_the_wanted_rate(fmr: float) -> None:
    rng = np.random.default_rng(3)
    distance = np.sort(rng.integers(0, 20, 200) / 20)  # with many ties
    threshold = find_threshold(distance, fmr)
    assert (distance <= threshold).mean() <= fmr + 1e-12
    larger = distance[distance > threshold]
    assert (distance <= larger.min()).mean() > fmr
    assert find_threshold(distance, fmr, np.ones(200)) == threshold
    assert find_threshold(distance, 1.0) == float("inf")


def test_bootstrap_weights_are_those_of_repeated_classes() -> None:
    pairs = Pairs(np.array([0.1, 0.2, 0.3]), np.array([0, 1, 0]), np.array([1, 2, 0]))
    assert pairs.weights(np.array([2, 3, 0])).tolist() == [6, 0, 2]
    weights = np.array([3.0, 0.0, 1.0, 2.0])
    distance = np.array([0.1, 0.2, 0.3, 0.4])
    repeated = np.repeat(distance, weights.astype(int))
    for fmr in (0.2, 0.5, 0.7, 0.9):
        assert find_threshold(distance, fmr, weights) == find_threshold(repeated, fmr)
        assert rejected_share(distance, 0.3, weights) == pytest.approx(rejected_share(repeated, 0.3))


def test_intervals_contain_the_estimate_and_rare_rates_are_left_out() -> None:
    vectors, labels = samples(4, classes=30)
    same, different = collect_pairs(vectors, labels)
    points = measure_operating_points(same, different, fmrs=(0.1, 0.01, 1e-7), replicates=60)
    assert [point.fmr for point in points] == [0.1, 0.01]
    for point in points:
        assert point.threshold_interval[0] <= point.threshold <= point.threshold_interval[1]
        assert point.fnmr == pytest.approx((same.distance > point.threshold).mean())
        assert point.fnmr_interval[0] < point.fnmr_interval[1]


def test_equal_error_rate() -> None:
    same = Pairs(np.array([0.1, 0.2, 0.3, 0.7]), np.zeros(4, np.int64), np.zeros(4, np.int64))
    different = Pairs(np.array([0.25, 0.6, 0.8, 0.9]), np.zeros(4, np.int64), np.ones(4, np.int64))
    assert equal_error_rate(same, different) == 0.25
