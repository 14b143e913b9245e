"""Student's t against scipy, and intervals against their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from nearfar.metrics.intervals import interval, t_probability, t_quantile


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 30, 101])
def test_t_is_scipys(df: int) -> None:
    for t in (-2.0, -0.3, 0.0, 0.7, 1.0, 4.0):
        assert t_probability(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-12)
    for p in (0.6, 0.95, 0.975, 0.999):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9)


def test_interval_is_scipys() -> None:
    values = np.random.default_rng(0).normal(size=5)
    found = interval(values.tolist())
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high), abs=1e-9)
    assert found.n == 5
    narrow = interval(values.tolist(), level=0.5)
    assert found.half > narrow.half > 0


def test_clear_means_that_zero_is_outside() -> None:
    assert interval([1.0, 1.1, 0.9]).excludes_zero
    assert interval([-1.0, -1.1, -0.9]).excludes_zero
    assert not interval([1.0, -1.0, 0.5]).excludes_zero
    assert not interval([0.0, 0.0]).excludes_zero


def test_one_value_says_nothing_about_its_spread() -> None:
    found = interval([0.5])
    assert (found.mean, found.low, found.high) == (0.5, -math.inf, math.inf)
    with pytest.raises(ValueError, match="values is empty"):
        interval([])
    with pytest.raises(ValueError, match=r"p must be above 0\.5 and below 1"):
        t_quantile(0.5, 3)
    with pytest.raises(ValueError, match="df must be at least 1, got 0"):
        t_quantile(0.9, 0)
