"""A calibration of clusters whose overlap is known, its file, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.calibration import Calibration, calibrate
from nearfar.calibration.error import estimate_error
from nearfar.calibration.neighbors import find_neighbors
from nearfar.calibration.stored import read_calibration
from nearfar.errors import NearfarError
from nearfar.metrics.probability import calibration_error
from nearfar.ops.geometry import unit


def clusters(classes: int, each: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return rng.normal(size=(classes, 8))[labels] + spread * rng.normal(size=(classes * each, 8)), labels


@pytest.fixture(scope="module")
def measured() -> Calibration:
    return calibrate(*clusters(60, 12, 0.7), limit=20_000)


def test_neighbors_are_those_of_a_full_sort() -> None:
    vectors, labels = clusters(5, 4, 0.5)
    x = unit(torch.from_numpy(vectors))
    gallery = np.flatnonzero(labels < 3)
    distances, rows = find_neighbors(x, np.arange(20), gallery, 30)
    for query in range(20):
        others = [row for row in gallery.tolist() if row != query]
        expected = sorted(others, key=lambda row: 1 - float(x[query] @ x[row]))
        assert rows[query].tolist() == expected + [-1] * (30 - len(expected))
        assert np.isinf(distances[query, len(expected) :]).all()


def test_probabilities_hold_on_other_classes(measured: Calibration) -> None:
    assert measured.same.error.value < 0.04
    assert measured.same.error.low <= measured.same.error.high
    vectors, labels = clusters(60, 12, 0.7, seed=1)
    distance, rows = find_neighbors(unit(torch.from_numpy(vectors)).float(), np.arange(720), np.arange(720), 10)
    is_same = labels[rows] == labels[:, None]
    p = measured.probability(distance)
    for low, high in ((0.0, 0.5), (0.5, 1.0)):
        inside = (p >= low) & (p < high)
        assert p[inside].mean() == pytest.approx(is_same[inside].mean(), abs=0.06)


def test_the_interval_of_a_small_error_contains_the_truth() -> None:
    """Chance only increases a calibration error, so an interval of the bootstrap replicates alone is too high."""
    truth, contained, contained_by_percentiles, values, chances = 0.0, 0, 0, [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        classes = np.repeat(np.arange(50), 40)
        p = rng.uniform(0.2, 0.8, 2000)
        effect = rng.normal(0, 0.15, 50)[classes]  # classes differ, but the mean over many classes is p
        is_true = rng.uniform(size=2000) < np.clip(p + effect, 0, 1)
        error = estimate_error(p, is_true, classes, seed=0)
        contained += error.low <= truth <= error.high
        rows = [np.concatenate([np.flatnonzero(classes == i) for i in rng.integers(0, 50, 50)]) for _ in range(40)]
        contained_by_percentiles += min(calibration_error(p[row], is_true[row]) for row in rows) <= truth
        values.append(error.value)
        chances.append(error.chance)
    assert contained >= 36
    assert contained_by_percentiles == 0
    assert np.mean(chances) == pytest.approx(np.mean(values), rel=0.2)  # the probabilities are perfect


def test_a_large_error_is_not_explained_by_chance() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.2, 0.8, 4000)
    error = estimate_error(p + 0.1, rng.uniform(size=4000) < p, np.repeat(np.arange(100), 40), seed=0)
    assert error.low > 0.05 > error.chance
    assert error.low < 0.1 < error.high


def test_unknown_classes_are_told_from_known_ones(measured: Calibration) -> None:
    far = calibrate(*clusters(40, 12, 0.1), limit=20_000).open_set
    assert far.auroc.value > 0.99 > measured.open_set.auroc.value > 0.7
    assert far.accuracy == 1
    assert far.accepted == pytest.approx(0.95, abs=0.05)
    assert far.rejected > 0.9


def test_isotonic_fits_too() -> None:
    assert calibrate(*clusters(60, 12, 0.7), method="isotonic", limit=5000).same.error.value < 0.06


def test_labels_may_be_any_numbers() -> None:
    vectors, labels = clusters(12, 6, 0.5)
    first, second = calibrate(vectors, labels, limit=2000), calibrate(vectors, 7 * labels + 3, limit=2000)
    assert first == second


def test_too_few_classes_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 4 classes of two or more samples, got 3"):
        calibrate(*clusters(3, 5, 0.5))


def test_the_file_holds_everything(measured: Calibration, tmp_path: Path) -> None:
    path = measured.save(tmp_path / "calibration.json")
    assert read_calibration(path) == measured
    assert measured.threshold(0.01).fmr == 0.01
    with pytest.raises(NearfarError, match=r"no threshold was measured for fmr=0\.02"):
        measured.threshold(0.02)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"version": 1},
        {"same": None},
        {"verification": {"auroc": "x"}},
        {"open_set": {"curve": {"method": "eval"}}},
        {"samples": "many"},
    ],
)
def test_a_damaged_file_is_one_line(measured: Calibration, tmp_path: Path, change: dict[str, object]) -> None:
    path = measured.save(tmp_path / "calibration.json")
    tree = json.loads(path.read_text())
    for key, value in change.items():
        tree[key] = tree[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(tree))
    with pytest.raises(NearfarError, match="run `nearfar calibrate` again"):
        read_calibration(path)
