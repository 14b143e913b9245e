"""Means over seeds with confidence intervals from Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Interval:
    """A mean of n values with its confidence interval [low, high]. For n = 1 the interval is infinite."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Return whether 0 is outside the interval."""
        return self.low > 0 or self.high < 0

    @property
    def half(self) -> float:
        """Return half the width of the interval."""
        return (self.high - self.low) / 2


def interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the mean of `values` with the confidence interval mean +- t s / sqrt(n).

    s is the sample standard deviation (with divisor n - 1). t is the (1 + level) / 2 quantile of Student's t
    distribution with n - 1 degrees of freedom.

    >>> interval([1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
    Interval(mean=2.0, low=-0.484..., high=4.484..., n=3)
    >>> interval([0.5]).excludes_zero
    False
    """
    n = len(values)
    if n == 0:
        raise ValueError("values is empty: pass at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    s = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile((1 + level) / 2, n - 1) * s / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def t_probability(t: float, df: int) -> float:
    """Return P(T <= t) for Student's t distribution with `df` degrees of freedom.

    P(|T| <= t) is a finite series in sin(theta) and cos(theta) with theta = arctan(t / sqrt(df)) (Abramowitz and
    Stegun, 26.7.3 and 26.7.4).

    >>> t_probability(0.0, 4), round(t_probability(1.0, 1), 12)
    (0.5, 0.75)
    """
    theta = math.atan(t / math.sqrt(df))
    sine, square = math.sin(theta), math.cos(theta) ** 2
    odd = df % 2
    term, total = 1.0, 0.0
    for k in range(df // 2):
        total += term
        term *= square * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    inside = 2 / math.pi * (theta + sine * math.cos(theta) * total) if odd else sine * total
    return 0.5 + inside / 2


@cache
def t_quantile(p: float, df: int) -> float:
    """Return the t with P(T <= t) = p for 0.5 < p < 1, by bisection.

    >>> round(t_quantile(0.975, 4), 6)
    2.776445
    """
    if not 0.5 < p < 1:
        raise ValueError(f"p must be above 0.5 and below 1, got {p}")
    if df < 1:
        raise ValueError(f"df must be at least 1, got {df}")
    low, high = 0.0, 1.0
    while t_probability(high, df) < p:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if t_probability(middle, df) < p else (low, middle)
