"""Probabilities from scores: logistic and isotonic curves, their reliability, and the expected calibration error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfar.validation import Floats, check_choice

METHODS = ("logistic", "isotonic")
BINS = 15
NEWTON_STEPS = 100


class Curve(Protocol):
    """A monotone function from a score to a probability."""

    def __call__(self, score: ArrayLike) -> Floats:
        """Return the probability of each score."""

    def to_dict(self) -> dict[str, Any]:
        """Return the name of the method and the parameters of the curve, for JSON."""


@dataclass(frozen=True)
class LogisticCurve:
    """The logistic curve: probability = 1 / (1 + exp(-(intercept + slope * score)))."""

    intercept: float
    slope: float

    def __call__(self, score: ArrayLike) -> Floats:
        z = np.clip(self.intercept + self.slope * np.asarray(score, np.float64), -500, 500)
        probability: Floats = 1 / (1 + np.exp(-z))
        return probability

    def to_dict(self) -> dict[str, Any]:
        return {"method": "logistic", "intercept": self.intercept, "slope": self.slope}


@dataclass(frozen=True)
class IsotonicCurve:
    """Linear interpolation between the knots (score, probability). It is constant beyond the outer knots."""

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __call__(self, score: ArrayLike) -> Floats:
        probability: Floats = np.interp(np.asarray(score, np.float64), self.scores, self.probabilities)
        return probability

    def to_dict(self) -> dict[str, Any]:
        return {"method": "isotonic", "scores": list(self.scores), "probabilities": list(self.probabilities)}


def curve_from_dict(tree: dict[str, Any]) -> Curve:
    """Create a curve from the output of its `to_dict`. Invalid input raises KeyError, TypeError or ValueError."""
    if tree["method"] == "logistic":
        numbers = [float(tree["intercept"]), float(tree["slope"])]
        if not np.isfinite(numbers).all():
            raise ValueError(f"a curve must have finite numbers, got {numbers}")
        return LogisticCurve(numbers[0], numbers[1])
    check_choice("method", tree["method"], METHODS)
    scores, probabilities = (tuple(float(value) for value in tree[key]) for key in ("scores", "probabilities"))
    if len(scores) != len(probabilities) or not scores or not np.isfinite([*scores, *probabilities]).all():
        raise ValueError("a curve must have one finite probability for each finite score")
    if (np.diff(scores) < 0).any() or min(probabilities) < 0 or max(probabilities) > 1:
        raise ValueError("the scores of a curve must be ascending, and its probabilities must be between 0 and 1")
    return IsotonicCurve(scores, probabilities)


def fit_curve(method: str, score: ArrayLike, truth: ArrayLike, *, is_increasing: bool) -> Curve:
    """Fit a curve that maps a score to the probability that `truth` is True.

    Args:
        method: "logistic" or "isotonic".
        score: Scores [N].
        truth: Booleans [N].
        is_increasing: Whether the probability increases with the score. Only "isotonic" uses it.
    """
    check_choice("method", method, METHODS)
    values, is_true = np.asarray(score, np.float64), np.asarray(truth, np.bool_)
    if not len(values) or values.shape != is_true.shape:
        raise ValueError(
            f"score and truth must both be [N] with N of at least 1, got {list(values.shape)} and {list(is_true.shape)}"
        )
    return fit_logistic(values, is_true) if method == "logistic" else fit_isotonic(values, is_true, is_increasing)


def fit_logistic(score: Floats, truth: NDArray[np.bool_]) -> LogisticCurve:
    """Fit a logistic curve by maximum likelihood with Platt's targets.

    The targets are (P + 1) / (P + 2) for the P true values and 1 / (N + 2) for the N false ones. They keep the slope
    finite even if the scores separate true from false perfectly (Platt, Probabilistic Outputs for Support Vector
    Machines, 1999). The two parameters are found with Newton's method; a step is halved until the likelihood grows.
    """
    positives, negatives = int(truth.sum()), int((~truth).sum())
    target = np.where(truth, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    center, scale = float(score.mean()), float(score.std()) or 1.0
    x = np.stack([np.ones_like(score), (score - center) / scale], 1)
    theta = np.array([np.log((positives + 1) / (negatives + 1)), 0.0])

    def cost(parameters: Floats) -> float:
        z = x @ parameters
        return float((np.logaddexp(0, z) - target * z).sum())

    current = cost(theta)
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ theta, -500, 500)))
        gradient = x.T @ (p - target)
        hessian = (x * (p * (1 - p))[:, None]).T @ x + 1e-12 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        while (new := cost(theta - step)) > current and np.abs(step).max() > 1e-12:
            step = step / 2
        theta, change, current = theta - step, current - new, new
        if abs(change) <= 1e-12 * abs(current):
            break
    slope = float(theta[1]) / scale
    return LogisticCurve(float(theta[0]) - slope * center, slope)


def fit_isotonic(score: Floats, truth: NDArray[np.bool_], is_increasing: bool) -> IsotonicCurve:
    """Fit the monotone function with the least squared error, by pooling adjacent violators.

    The curve is linear between the pooled blocks, as in scikit-learn.

    >>> fit_isotonic(np.array([0.0, 1.0, 2.0, 3.0]), np.array([False, True, False, True]), True)
    IsotonicCurve(scores=(0.0, 1.0, 2.0, 3.0), probabilities=(0.0, 0.5, 0.5, 1.0))
    """
    x, which, counts = np.unique(score, return_inverse=True, return_counts=True)
    mean = np.bincount(which, weights=truth) / counts
    if not is_increasing:
        mean = 1 - mean
    blocks: list[list[float]] = []  # mean, weight, first score, last score
    for value, weight, place in zip(mean.tolist(), counts.tolist(), x.tolist(), strict=True):
        blocks.append([value, weight, place, place])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            high, low = blocks.pop(), blocks.pop()
            total = high[1] + low[1]
            blocks.append([(high[0] * high[1] + low[0] * low[1]) / total, total, low[2], high[3]])
    knots = [(place, block[0]) for block in blocks for place in dict.fromkeys(block[2:])]
    probabilities = tuple(value if is_increasing else 1 - value for _, value in knots)
    return IsotonicCurve(tuple(place for place, _ in knots), probabilities)


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions of similar probability: their mean probability, the fraction that is true, and their number."""

    predicted: float
    observed: float
    count: int


def bin_numbers(probability: ArrayLike, *, bins: int = BINS) -> NDArray[np.int64]:
    """Return the number of the bin that contains each probability. The bins have equal width."""
    return np.minimum((np.asarray(probability, np.float64) * bins).astype(np.int64), bins - 1)


def reliability(probability: ArrayLike, truth: ArrayLike, *, bins: int = BINS) -> list[ReliabilityBin]:
    """Group predictions by their probability into bins of equal width. Empty bins are left out.

    >>> reliability([0.1, 0.1, 0.9], [False, True, True], bins=2)
    [ReliabilityBin(predicted=0.1, observed=0.5, count=2), ReliabilityBin(predicted=0.9, observed=1.0, count=1)]
    """
    p, is_true = np.asarray(probability, np.float64), np.asarray(truth, np.bool_)
    number = bin_numbers(p, bins=bins)
    counts = np.bincount(number, minlength=bins)
    sums, hits = np.bincount(number, p, minlength=bins), np.bincount(number, is_true, minlength=bins)
    return [
        ReliabilityBin(float(sums[i] / counts[i]), float(hits[i] / counts[i]), int(counts[i]))
        for i in np.flatnonzero(counts).tolist()
    ]


def calibration_error(
    probability: ArrayLike, truth: ArrayLike, *, weights: ArrayLike | None = None, bins: int = BINS
) -> float:
    """Return the expected calibration error: the mean of |predicted - observed| over the bins, weighted by their size.

    The bins have equal width (Naeini et al., AAAI 2015; Guo et al., ICML 2017, with 15 bins). `weights` are the weights
    of the predictions, by default 1.

    >>> calibration_error([0.1, 0.1, 0.9], [False, True, True], bins=2)  # (2 * 0.4 + 0.1) / 3
    0.3
    """
    p, is_true = np.asarray(probability, np.float64), np.asarray(truth, np.float64)
    w = np.ones_like(p) if weights is None else np.asarray(weights, np.float64)
    number = bin_numbers(p, bins=bins)
    gaps = np.abs(np.bincount(number, w * (p - is_true), minlength=bins))
    return float(round(gaps.sum() / w.sum(), 15))
