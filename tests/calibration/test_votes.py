"""Votes against a loop."""

from __future__ import annotations

import numpy as np

from nearfar.calibration.votes import vote


def test_votes_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    labels, probability = rng.integers(-1, 5, (50, 8)), rng.random((50, 8))
    probability[labels < 0] = 0
    sizes = np.array([1, 2, 3, 20, 100])
    classes, scores = vote(probability, labels, sizes, shown=3)
    for row in range(50):
        totals = {}
        for label, p in zip(labels[row].tolist(), probability[row].tolist(), strict=True):
            if label >= 0:
                totals[label] = totals.get(label, 0.0) + p
        ranked = sorted(totals, key=lambda c: (-totals[c] / min(8, sizes[c]), c))[:3]
        assert classes[row].tolist() == ranked + [-1] * (3 - len(ranked))
        expected = [totals[c] / min(8, sizes[c]) for c in ranked]
        np.testing.assert_allclose(scores[row], expected + [0.0] * (3 - len(ranked)))


def test_more_classes_than_neighbors_are_padded() -> None:
    classes, scores = vote(np.array([[0.5]]), np.array([[2]]), np.array([1, 1, 4]), shown=3)
    assert classes.tolist() == [[2, -1, -1]]
    assert scores.tolist() == [[0.5, 0, 0]]


def test_a_query_does_not_count_as_a_sample_of_its_class() -> None:
    probability, labels, sizes = np.full((2, 2), 0.9), np.array([[0, 1], [0, 1]]), np.array([2, 2])
    classes, scores = vote(probability, labels, sizes, own=np.array([1, -1]), shown=2)
    assert classes.tolist() == [[1, 0], [0, 1]]
    np.testing.assert_allclose(scores, [[0.9, 0.45], [0.45, 0.45]])
