"""Metrics of open-set recognition: how well a score separates samples of known classes from those of unknown ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from nearfar.validation import Floats

TPR = 0.95


def accept_threshold(score: ArrayLike, share: float = TPR) -> float:
    """Return the largest threshold that at least `share` of the scores reach.

    >>> accept_threshold([0.1, 0.2, 0.3, 0.4], 0.75)
    0.2
    """
    values: Floats = np.sort(np.asarray(score, np.float64))
    return float(values[len(values) - int(np.ceil(share * len(values) - 1e-9))])


def fpr_at_tpr(score: ArrayLike, known: ArrayLike, share: float = TPR) -> float:
    """Return the fraction of unknown samples accepted at the threshold that accepts `share` of the known samples.

    A sample is accepted if its score is at least the threshold. `known` [N] is True for samples of known classes.

    >>> fpr_at_tpr([0.9, 0.1, 0.8, 0.7], [True, False, False, True])
    0.5
    """
    values, is_known = np.asarray(score, np.float64), np.asarray(known, np.bool_)
    return float((values[~is_known] >= accept_threshold(values[is_known], share)).mean())
