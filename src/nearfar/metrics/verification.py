"""Verification: decide from the distance between two samples whether they have the same class, and measure the errors.

A pair is accepted (taken to have the same class) if its distance is at most a threshold. Two errors are possible:

- FMR, the false match rate: the fraction of pairs of different classes that are accepted.
- FNMR, the false non-match rate: the fraction of pairs of the same class that are rejected.

Names and definitions follow ISO/IEC 19795-1. Confidence intervals come from a bootstrap over classes, because pairs
that share a class are not independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.validation import Floats, Ints

MAX_PAIRS = 1_000_000
# An FMR is estimated only if at least this many pairs of different classes are expected to be accepted (our choice).
MIN_ACCEPTED = 10
FMRS = (1e-1, 1e-2, 1e-3, 1e-4)
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of samples with ascending distances.

    Attributes:
        distance: 1 - cosine [P], ascending.
        first: Class number of the first sample [P].
        second: Class number of the second sample [P].
    """

    distance: Floats
    first: Ints
    second: Ints

    def __len__(self) -> int:
        return len(self.distance)

    def weights(self, counts: Ints) -> Floats:
        """Return the weights [P] of the pairs in a bootstrap replicate that drew class c counts[c] times.

        The weight of a pair within one class is the count of that class. The weight of a pair of two classes is the
        product of their counts.
        """
        first = counts[self.first].astype(np.float64)
        return np.where(self.first == self.second, first, first * counts[self.second])


@dataclass(frozen=True)
class OperatingPoint:
    """The threshold for a target FMR and the FNMR at this threshold, each with a confidence interval (low, high)."""

    fmr: float
    threshold: float
    threshold_interval: tuple[float, float]
    fnmr: float
    fnmr_interval: tuple[float, float]


def collect_pairs(vectors: Tensor, classes: Ints, *, limit: int = MAX_PAIRS, seed: int = 0) -> tuple[Pairs, Pairs]:
    """Return the pairs of samples with the same class and those with different classes.

    Args:
        vectors: Unit vectors [N, d].
        classes: Class numbers [N], 0..C-1.
        limit: The largest number of pairs of each kind. If there are more, a random sample of `limit` pairs is drawn
            with replacement.
        seed: Seed of the sample.

    >>> same, different = collect_pairs(torch.eye(3)[[0, 0, 1]], np.array([0, 0, 1]))
    >>> same.distance, different.distance
    (array([0.]), array([1., 1.]))
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(classes, kind="stable")
    sizes = np.bincount(classes)
    same = _same_class_positions(sizes, limit, rng)
    different = _different_class_positions(sizes, limit, rng)
    return _measure(vectors, classes, *order[same]), _measure(vectors, classes, *order[different])


def find_threshold(distance: Floats, fmr: float, weights: Floats | None = None) -> float:
    """Return the largest threshold whose FMR is at most `fmr`.

    Args:
        distance: Ascending distances [P] of pairs of different classes.
        fmr: The target FMR.
        weights: Weights [P] of the pairs, by default 1.

    >>> find_threshold(np.array([0.1, 0.2, 0.2, 0.4]), 0.5) < 0.2
    True
    """
    if weights is None:
        index = int(np.floor(fmr * len(distance) + 1e-9))
    else:
        cumulative = np.cumsum(weights)
        index = int(np.searchsorted(cumulative, fmr * cumulative[-1] * (1 + 1e-12), side="right"))
    return float("inf") if index >= len(distance) else float(np.nextafter(distance[index], -np.inf))


def rejected_share(distance: Floats, threshold: float, weights: Floats | None = None) -> float:
    """Return the fraction of pairs whose distance is above the threshold. `distance` [P] is ascending."""
    index = int(np.searchsorted(distance, threshold, side="right"))
    if weights is None:
        return 1 - index / len(distance)
    return float(weights[index:].sum() / weights.sum())


def measure_operating_points(
    same: Pairs, different: Pairs, *, fmrs: tuple[float, ...] = FMRS, replicates: int = 200, seed: int = 0
) -> list[OperatingPoint]:
    """Return the threshold and the FNMR for each target FMR, with 95% intervals from a bootstrap over classes.

    Each replicate draws C times from the C classes, with replacement. A target FMR is left out if it would accept fewer
    than ten pairs of different classes, because these are too few to estimate the threshold.
    """
    wanted = [fmr for fmr in fmrs if fmr * len(different) >= MIN_ACCEPTED]
    rng = np.random.default_rng(seed)
    thresholds, fnmrs = np.zeros((replicates, len(wanted))), np.zeros((replicates, len(wanted)))
    present = np.unique(np.concatenate([same.first, different.first, different.second]))
    for row in range(replicates):
        counts = np.bincount(rng.choice(present, len(present)), minlength=int(present.max()) + 1)
        same_weights, different_weights = same.weights(counts), different.weights(counts)
        if not same_weights.any() or not different_weights.any():
            thresholds[row], fnmrs[row] = np.nan, np.nan
            continue
        for column, fmr in enumerate(wanted):
            threshold = find_threshold(different.distance, fmr, different_weights)
            thresholds[row, column] = threshold
            fnmrs[row, column] = rejected_share(same.distance, threshold, same_weights)
    points = []
    for column, fmr in enumerate(wanted):
        threshold = find_threshold(different.distance, fmr)
        points.append(
            OperatingPoint(
                fmr,
                threshold,
                percentile_interval(thresholds[:, column]),
                rejected_share(same.distance, threshold),
                percentile_interval(fnmrs[:, column]),
            )
        )
    return points


def equal_error_rate(same: Pairs, different: Pairs) -> float:
    """Return the equal error rate: the mean of FMR and FNMR at the smallest threshold at which FMR >= FNMR."""
    distances = np.concatenate([same.distance, different.distance])
    is_same = np.concatenate([np.ones(len(same), np.bool_), np.zeros(len(different), np.bool_)])
    order = np.argsort(distances, kind="stable")
    fnmr = 1 - np.cumsum(is_same[order]) / len(same)
    fmr = np.cumsum(~is_same[order]) / len(different)
    index = int(np.argmax(fmr >= fnmr))
    return float((fmr[index] + fnmr[index]) / 2)


def percentile_interval(values: Floats, *, level: float = LEVEL) -> tuple[float, float]:
    """Return the interval that contains the middle fraction `level` of the bootstrap replicates. NaN is ignored."""
    tail = 50 * (1 - level)
    low, high = np.nanpercentile(values, [tail, 100 - tail], method="nearest")
    return float(low), float(high)


def _same_class_positions(sizes: Ints, limit: int, rng: np.random.Generator) -> Ints:
    """Return pairs of samples of the same class, as positions [2, P] in the list of all samples sorted by class."""
    starts = np.cumsum(sizes) - sizes
    counts = sizes * (sizes - 1) // 2
    if int(counts.sum()) <= limit:
        pairs = [start + np.stack(np.triu_indices(size, 1)) for start, size in zip(starts, sizes.tolist(), strict=True)]
        return np.concatenate(pairs, axis=1)
    chosen = rng.choice(len(sizes), limit, p=counts / counts.sum())
    first = rng.integers(0, sizes[chosen])
    second = (first + rng.integers(1, sizes[chosen])) % sizes[chosen]
    return starts[chosen] + np.stack([first, second])


def _different_class_positions(sizes: Ints, limit: int, rng: np.random.Generator) -> Ints:
    """Return pairs of samples of different classes, as positions [2, P] in the list of all samples sorted by class."""
    total = int(sizes.sum())
    ends = np.repeat(np.cumsum(sizes), sizes)  # for each sample, the position at which the next class begins
    if int((total - ends).sum()) <= limit:
        first = np.repeat(np.arange(total), total - ends)
        offsets = np.arange(len(first)) - np.repeat(np.cumsum(total - ends) - (total - ends), total - ends)
        return np.stack([first, ends[first] + offsets])
    outside = total - np.repeat(sizes, sizes)
    first = rng.choice(total, limit, p=outside / outside.sum())
    return np.stack([first, (ends[first] + rng.integers(0, outside[first])) % total])


def _measure(vectors: Tensor, classes: Ints, first: Ints, second: Ints, *, block: int = 1 << 16) -> Pairs:
    parts = [np.zeros(0)]
    for start in range(0, len(first), block):
        left, right = (torch.from_numpy(rows[start : start + block]) for rows in (first, second))
        cosine = (vectors[left] * vectors[right]).sum(1)
        parts.append((1 - cosine).clamp_min(0).double().cpu().numpy())
    distance = np.concatenate(parts)
    order = np.argsort(distance, kind="stable")
    return Pairs(distance[order], classes[first[order]], classes[second[order]])
