"""Probability curves against scikit-learn, and the calibration error against a loop."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from nearfar.metrics.open_set import accept_threshold, fpr_at_tpr
from nearfar.metrics.probability import calibration_error, curve_from_dict, fit_curve, reliability


def scored(seed: int = 0, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    score = rng.normal(0.4, 0.2, count).round(2)
    return score, rng.random(count) < 1 / (1 + np.exp(8 * (score - 0.4)))


def test_logistic_has_the_likelihood_of_sklearn_with_platts_targets() -> None:
    score, truth = scored()
    positives, negatives = truth.sum(), (~truth).sum()
    high, low = (positives + 1) / (positives + 2), 1 / (negatives + 2)
    target = np.where(truth, high, low)
    # a soft target is one sample of each class with these weights
    reference = LogisticRegression(C=1e12, tol=1e-12, max_iter=1000).fit(
        np.tile(score, 2)[:, None], np.repeat([1, 0], len(score)), sample_weight=np.concatenate([target, 1 - target])
    )
    curve = fit_curve("logistic", score, truth, is_increasing=False)
    grid = np.linspace(-0.5, 1.5, 21)
    np.testing.assert_allclose(curve(grid), reference.predict_proba(grid[:, None])[:, 1], atol=1e-6)


@pytest.mark.parametrize("is_increasing", [True, False])
def test_isotonic_is_that_of_sklearn(is_increasing: bool) -> None:
    score, truth = scored(1)
    score = -score if is_increasing else score
    reference = IsotonicRegression(increasing=is_increasing, out_of_bounds="clip").fit(score, truth)
    curve = fit_curve("isotonic", score, truth, is_increasing=is_increasing)
    grid = np.linspace(score.min() - 1, score.max() + 1, 300)
    np.testing.assert_allclose(curve(grid), reference.predict(grid), atol=1e-9)


@pytest.mark.parametrize("method", ["logistic", "isotonic"])
def test_separable_and_constant_input_stays_finite(method: str) -> None:
    apart = fit_curve(method, [0.0, 0.1, 0.9, 1.0], [True, True, False, False], is_increasing=False)
    assert apart(0.0) > 0.7 > 0.3 > apart(1.0)
    always = fit_curve(method, [0.5] * 8, [True] * 8, is_increasing=False)
    assert 0.85 < float(always(0.5)) <= 1
    with pytest.raises(ValueError, match="score and truth must both be"):
        fit_curve(method, [], [], is_increasing=False)


@pytest.mark.parametrize("method", ["logistic", "isotonic"])
def test_a_curve_survives_json_and_damage_is_an_error(method: str) -> None:
    curve = fit_curve(method, *scored(2), is_increasing=False)
    again = curve_from_dict(curve.to_dict())
    assert again == curve
    key = "slope" if method == "logistic" else "probabilities"
    for damage in (float("nan"), [2.0], "x"):
        with pytest.raises((ValueError, TypeError)):
            curve_from_dict(curve.to_dict() | {key: damage})


def test_calibration_error_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(3)
    p, truth = rng.random(500), rng.random(500) < 0.5
    expected = 0.0
    for i in range(15):
        inside = [j for j in range(500) if i / 15 <= p[j] < (i + 1) / 15]
        if inside:
            gap = abs(np.mean([p[j] for j in inside]) - np.mean([truth[j] for j in inside]))
            expected += gap * len(inside) / 500
    assert calibration_error(p, truth) == pytest.approx(expected, abs=1e-9)
    twice = calibration_error(np.concatenate([p, p[:50]]), np.concatenate([truth, truth[:50]]))
    assert calibration_error(p, truth, weights=1 + (np.arange(500) < 50)) == pytest.approx(twice, abs=1e-9)
    bins = reliability(p, truth)
    assert sum(part.count for part in bins) == 500
    assert sum(part.count * abs(part.predicted - part.observed) for part in bins) / 500 == pytest.approx(expected)


def test_acceptance_of_known_and_unknown_scores() -> None:
    known, unknown = np.arange(1, 101) / 100, np.array([0.02, 0.055, 0.06, 0.5])
    assert accept_threshold(known, 0.95) == 0.06
    score, is_known = np.concatenate([known, unknown]), np.repeat([True, False], [100, 4])
    assert fpr_at_tpr(score, is_known) == 0.5
