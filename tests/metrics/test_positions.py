"""Every method gives the positions of a stable full sort."""

import numpy as np
import pytest
import torch

from nearfar.metrics.exact import positions as exact
from nearfar.metrics.exact.positions import BEYOND


def random_case(seed, *, rows=7, gallery=400, width=12, levels=0):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((rows, gallery)).astype(np.float32)
    if levels:
        scores = np.round(scores * levels) / np.float32(levels)
    scores[rng.random(scores.shape) < 0.05] = -np.inf
    positives = np.stack([np.sort(rng.choice(gallery, width, replace=False)) for _ in range(rows)])
    is_left_out = np.take_along_axis(scores, positives, axis=1) == -np.inf
    positives[is_left_out | (rng.random(positives.shape) < 0.1)] = -1
    positives[0] = -1
    return scores, positives


def expected_positions(scores, positives):
    out = np.full(positives.shape, BEYOND)
    for row, indices, line in zip(scores, positives, out, strict=True):
        order = np.argsort(-row, kind="stable").tolist()
        line[:] = sorted(order.index(p) + 1 if p >= 0 else BEYOND for p in indices.tolist())
    return out


@pytest.mark.parametrize("levels", [0, 1, 8])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_methods_agree(seed, levels, dtype):
    scores, positives = random_case(seed, levels=levels)
    scores = scores.astype(dtype)
    expected = expected_positions(scores, positives)
    assert (exact.count_positions(scores, positives) == expected).all()
    assert (exact.sort_positions(scores, positives) == expected).all()
    assert (
        exact.sort_positions_on_device(torch.from_numpy(scores), torch.from_numpy(positives)).numpy() == expected
    ).all()
    assert (exact.compute_positions(scores, positives, 400) == expected).all()


@pytest.mark.parametrize("levels", [0, 1, 8])
@pytest.mark.parametrize("depth", [1, 2, 30, 150, 250, 400])
def test_selection_is_exact_up_to_its_depth(levels, depth):
    scores, positives = random_case(depth, levels=levels)
    expected = expected_positions(scores, positives)
    selected = exact.select_positions(scores, positives, depth)
    near = expected <= depth
    assert (selected[near] == expected[near]).all()
    assert (selected[~near] > depth).all()
    assert (selected[:, 0] == expected[:, 0]).all(), "the position of the best positive is exact at any depth"


def test_zeros_of_either_sign_tie():
    row = np.array([[0.0, -0.0, 0.0, -0.0]], dtype=np.float32)
    assert exact.stable_order(row[0]).tolist() == [0, 1, 2, 3]
    for method in (exact.count_positions, exact.sort_positions):
        assert method(row, np.array([[1, 3]])).tolist() == [[2, 4]]
    assert exact.select_positions(row, np.array([[1, 3]]), 4).tolist() == [[2, 4]]


def test_infinities_and_negatives_order():
    row = np.array([-1.5, -np.inf, 2.0, -0.25, 0.25], dtype=np.float32)
    assert exact.stable_order(row).tolist() == [2, 4, 3, 0, 1]
