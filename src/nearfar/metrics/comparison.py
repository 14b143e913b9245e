"""Paired bootstrap of the difference between two models on the same queries."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfar.validation import Ints


@dataclass(frozen=True)
class Difference:
    """A mean difference with its bootstrap interval [low, high] at confidence level `level`."""

    mean: float
    low: float
    high: float
    level: float

    @property
    def excludes_zero(self) -> bool:
        """Return whether 0 is outside the interval."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{100 * self.mean:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


def compare_columns(
    differences: Mapping[str, NDArray[np.float64]], groups: Ints, *, level: float, resamples: int, seed: int
) -> dict[str, Difference]:
    """Return the mean of the per-query differences of each metric, with a bootstrap interval.

    The bootstrap resamples whole groups of queries with replacement. The mean of a resample is
    sum_c w_c S_c / sum_c w_c n_c, where w_c is the number of times that the resample draws group c, S_c is the sum of
    the differences in the group, and n_c is its number of queries. The ends of the interval are percentiles of these
    means. All metrics use the same resamples.

    Args:
        differences: For each metric, the difference of every query.
        groups: The group number of each query.
        level: Confidence level of the interval.
        resamples: Number of resamples.
        seed: Random seed of the resampling.

    >>> d = compare_columns({"mrr": np.ones(5)}, np.arange(5), level=0.9, resamples=10, seed=0)["mrr"]
    >>> d.mean, d.low, d.high, d.excludes_zero
    (1.0, 1.0, 1.0, True)
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be above 0 and below 1, got {level}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}")
    size = np.bincount(groups).astype(np.float64)
    sums = np.stack([np.bincount(groups, weights=column) for column in differences.values()])
    rng = np.random.default_rng(seed)
    means = np.empty((resamples, len(sums)))
    for sample in means:
        times = np.bincount(rng.integers(len(size), size=len(size)), minlength=len(size))
        sample[:] = sums @ times / (size @ times)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {
        name: Difference(float(column.mean()), float(low[i]), float(high[i]), level)
        for i, (name, column) in enumerate(differences.items())
    }
