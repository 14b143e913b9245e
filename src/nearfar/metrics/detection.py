"""Metrics of wrong-label detection: how well a score separates wrong labels from right ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearfar.validation import Floats


def precision_at(score: ArrayLike, wrong: ArrayLike, count: int) -> float:
    """Return the fraction of wrong labels among the `count` samples with the highest scores.

    Samples with equal scores are taken in order of their index.

    >>> precision_at([0.9, 0.1, 0.8, 0.7], [True, False, False, True], 2)
    0.5
    """
    values, truth = _as_arrays(score, wrong)
    if not 1 <= count <= len(values):
        raise ValueError(f"count must be in 1..{len(values)}, got {count}")
    return float(truth[np.argsort(-values, kind="stable")[:count]].mean())


def auroc(score: ArrayLike, wrong: ArrayLike) -> float:
    """Return the probability that a wrong label has a higher score than a right one. Equal scores count as one half.

    >>> auroc([0.9, 0.1, 0.8, 0.7], [True, False, False, True])
    0.75
    """
    values, truth = _as_arrays(score, wrong)
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        raise ValueError(f"wrong must contain both True and False, got {positives} True and {negatives} False")
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[which]
    return float((rank[truth].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def measure_detection(score: ArrayLike, wrong: ArrayLike) -> dict[str, float]:
    """Return the AUROC, and the precision among the n highest scores, where n is the number of wrong labels.

    >>> measure_detection([0.9, 0.1, 0.8, 0.7], [True, False, False, True])
    {'auroc': 0.75, 'precision': 0.5}
    """
    return {"auroc": auroc(score, wrong), "precision": precision_at(score, wrong, int(np.sum(wrong)))}


def _as_arrays(score: ArrayLike, wrong: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    values, truth = np.asarray(score, np.float64), np.asarray(wrong, np.bool_)
    if values.shape != truth.shape or values.ndim != 1:
        raise ValueError(
            f"score and wrong must both have shape [N], got shapes {list(values.shape)} and {list(truth.shape)}"
        )
    return values, truth
