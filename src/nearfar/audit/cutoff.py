"""The score above which a label is probably wrong, from a mixture of two normal distributions."""

from __future__ import annotations

import numpy as np

from nearfar.validation import Floats

ITERATIONS = 200
TOLERANCE = 1e-6
MIN_SAMPLES = 20  # with fewer samples, two distributions cannot be told apart


def find_cutoff(score: Floats) -> float:
    """Return the score from which on a label is more likely wrong than right.

    Scores of right and of wrong labels are modeled as two normal distributions (as the losses in Arazo et al.,
    Unsupervised Label Noise Modeling and Loss Correction, ICML 2019, there with beta distributions). Both and their
    shares are fitted with the EM algorithm, so the cut-off adapts to the amount of noise. It is the lowest score above
    the mean of the right labels at which the probability of the higher distribution exceeds one half.

    Args:
        score: Scores [N], higher for labels that are more likely wrong.

    Returns:
        The cut-off; infinity if there are fewer than 20 scores or if all are equal.

    >>> rng = np.random.default_rng(0)
    >>> 1.5 < find_cutoff(np.concatenate([rng.normal(0, 0.5, 900), rng.normal(4, 1, 100)])) < 2.5
    True
    """
    if len(score) < MIN_SAMPLES or float(score.std()) == 0:
        return float("inf")
    means = np.quantile(score, [0.5, 0.95])
    deviations = np.full(2, float(score.std()) / 2)
    shares = np.array([0.9, 0.1])
    floor = 1e-3 * float(score.std())
    for _ in range(ITERATIONS):
        probability = _probabilities(score, means, deviations, shares)
        total = probability.sum(0) + 1e-12
        before, means = means, (probability * score[:, None]).sum(0) / total
        deviations = np.sqrt((probability * (score[:, None] - means) ** 2).sum(0) / total) + floor
        shares = total / len(score)
        if np.abs(means - before).max() < TOLERANCE:
            break
    right = int(means.argmin())
    is_wrong = _probabilities(score, means, deviations, shares)[:, 1 - right] > 0.5
    candidates = score[is_wrong & (score > means[right])]
    return float(candidates.min()) if len(candidates) else float("inf")


def _probabilities(score: Floats, means: Floats, deviations: Floats, shares: Floats) -> Floats:
    """Return the probability that each score comes from each distribution, [N, 2]."""
    distance = (score[:, None] - means) / deviations
    logs = np.log(shares + 1e-300) - np.log(deviations) - distance**2 / 2
    weights = np.exp(logs - logs.max(1, keepdims=True))
    result: Floats = weights / weights.sum(1, keepdims=True)
    return result
