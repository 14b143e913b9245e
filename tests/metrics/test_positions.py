"""Every way to the ranks gives the ranks of a stable full sort."""

import numpy as np
import pytest
import torch

from nearfar.metrics.exact import positions
from nearfar.metrics.exact.positions import BEYOND


def random_case(seed, *, rows=7, gallery=400, width=12, levels=0):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((rows, gallery)).astype(np.float32)
    if levels:
        scores = np.round(scores * levels) / np.float32(levels)
    scores[rng.random(scores.shape) < 0.05] = -np.inf
    positions = np.stack([np.sort(rng.choice(gallery, width, replace=False)) for _ in range(rows)])
    left_out = np.take_along_axis(scores, positions, axis=1) == -np.inf
    positions[left_out | (rng.random(positions.shape) < 0.1)] = -1
    positions[0] = -1
    return scores, positions


def expected_ranks(scores, positions):
    out = np.full(positions.shape, BEYOND)
    for row, places, line in zip(scores, positions, out, strict=True):
        order = np.argsort(-row, kind="stable").tolist()
        line[:] = sorted(order.index(p) + 1 if p >= 0 else BEYOND for p in places.tolist())
    return out


@pytest.mark.parametrize("levels", [0, 1, 8])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ways_agree(seed, levels, dtype):
    scores, positions = random_case(seed, levels=levels)
    scores = scores.astype(dtype)
    expected = expected_ranks(scores, positions)
    assert (positions.by_counting(scores, positions) == expected).all()
    assert (positions.by_stable_sort(scores, positions) == expected).all()
    assert (positions.by_device_sort(torch.from_numpy(scores), torch.from_numpy(positions)).numpy() == expected).all()
    assert (positions.positive_ranks(scores, positions, 400) == expected).all()


@pytest.mark.parametrize("levels", [0, 1, 8])
@pytest.mark.parametrize("depth", [1, 2, 30, 150, 250, 400])
def test_selection_is_exact_up_to_its_depth(levels, depth):
    scores, positions = random_case(depth, levels=levels)
    expected = expected_ranks(scores, positions)
    found = positions.by_selection(scores, positions, depth)
    near = expected <= depth
    assert (found[near] == expected[near]).all()
    assert (found[~near] > depth).all()
    assert (found[:, 0] == expected[:, 0]).all(), "the best positive's rank is exact at any depth"


def test_zeros_of_either_sign_tie():
    row = np.array([[0.0, -0.0, 0.0, -0.0]], dtype=np.float32)
    assert positions.stable_order(row[0]).tolist() == [0, 1, 2, 3]
    for way in (positions.by_counting, positions.by_stable_sort):
        assert way(row, np.array([[1, 3]])).tolist() == [[2, 4]]
    assert positions.by_selection(row, np.array([[1, 3]]), 4).tolist() == [[2, 4]]


def test_infinities_and_negatives_order():
    row = np.array([-1.5, -np.inf, 2.0, -0.25, 0.25], dtype=np.float32)
    assert positions.stable_order(row).tolist() == [2, 4, 3, 0, 1]
