"""The calibration error of probabilities, with an interval and with the error that chance alone explains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearfar.calibration.stored import CalibrationError
from nearfar.metrics.probability import BINS, bin_numbers, calibration_error
from nearfar.metrics.verification import percentile_interval
from nearfar.validation import Floats, Ints

REPLICATES = 1000


def estimate_error(probability: Floats, truth: NDArray[np.bool_], classes: Ints, *, seed: int) -> CalibrationError:
    """Return the expected calibration error with a 95% interval from a bootstrap that draws classes with replacement.

    The calibration error is a mean of absolute values, so random variation increases it on average. A bootstrap
    replicate has the variation of the data and also that of the resampling. The replicates are therefore too large if
    the true error is small. The lower end of the interval is 0 if perfect probabilities could have the measured error
    by chance. Otherwise, it is the lower end of the basic bootstrap interval, 2 * value - high, but at least 0.
    docs/guides/decide.md reports how often the interval contains the true error.

    Args:
        probability: Predicted probabilities [N].
        truth: Whether each prediction was true [N].
        classes: The class number of each prediction [N]. Predictions of one class are not independent.
        seed: Seed of the bootstrap.
    """
    groups = np.unique(classes, return_inverse=True)[1]
    count = int(groups.max()) + 1
    cell = groups * BINS + bin_numbers(probability)
    # sums over the samples of a class in a bin: differences between probability and truth, and numbers of samples
    gaps = np.bincount(cell, probability - truth, minlength=count * BINS).reshape(count, BINS)
    sizes = np.bincount(cell, minlength=count * BINS).reshape(count, BINS)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=REPLICATES)
    totals = draws @ sizes.sum(1)
    value = calibration_error(probability, truth)
    high = max(value, percentile_interval(np.abs(draws @ gaps).sum(1) / totals)[1])
    # With perfect probabilities, the mean gap of each bin would be 0. The differences between the classes would remain.
    perfect = gaps - sizes * (gaps.sum(0) / np.maximum(sizes.sum(0), 1))
    by_chance = np.abs(draws @ perfect).sum(1) / totals
    is_explained = value <= percentile_interval(by_chance)[1]
    low = 0.0 if is_explained else max(0.0, 2 * value - high)
    return CalibrationError(value, low, high, float(by_chance.mean()))
