"""The cut-off score of an audit: a label whose score is at least the cut-off is probably wrong.

The scores of right labels and the scores of wrong labels are modeled as two normal distributions.
"""

from __future__ import annotations

import numpy as np

from nearfar.validation import Floats

ITERATIONS = 200
TOLERANCE = 1e-6
MIN_SAMPLES = 20  # with fewer samples, two distributions cannot be told apart


def find_cutoff(score: Floats, reference: Floats) -> float:
    """Return the lowest score at which a label is more likely wrong than right.

    The scores of right labels and those of wrong labels are modeled as two normal distributions. Arazo et al.
    (Unsupervised Label Noise Modeling and Loss Correction, ICML 2019) model losses in the same way with beta
    distributions. The distribution of wrong labels has the mean and the standard deviation of `reference` and is not
    fitted to `score`. If it were, the hard samples of clean data would be mistaken for wrong labels. The distribution
    of right labels and the fraction of wrong labels are fitted with the EM algorithm, so the cut-off adapts to the
    amount of noise. Only scores above the mean of the right labels can be the cut-off.

    Args:
        score: Scores [N], higher for labels that are more likely wrong.
        reference: Scores [M] of labels that are known to be wrong.

    Returns:
        The cut-off; infinity if there are fewer than 20 scores or no reference, if all scores are equal, if the mean of
        `reference` is not above the median of `score`, or if no label is likely wrong.

    >>> rng = np.random.default_rng(0)
    >>> right, wrong, reference = rng.normal(0, 0.5, 900), rng.normal(4, 1, 100), rng.normal(4, 1, 50)
    >>> 1 < find_cutoff(np.concatenate([right, wrong]), reference) < 2.5, find_cutoff(right, reference)
    (True, inf)
    """
    if len(score) < MIN_SAMPLES or not len(reference) or float(score.std()) == 0:
        return float("inf")
    if float(reference.mean()) <= float(np.median(score)):  # the scores do not separate wrong labels from right ones
        return float("inf")
    floor = 1e-3 * float(score.std())
    means = np.array([np.median(score), reference.mean()])
    deviations = np.array([score.std() / 2, reference.std() + floor])
    shares = np.array([0.95, 0.05])
    for _ in range(ITERATIONS):
        right = _probabilities(score, means, deviations, shares)[:, 0]
        total = right.sum() + 1e-12
        before = means[0]
        means[0] = (right * score).sum() / total
        deviations[0] = np.sqrt((right * (score - means[0]) ** 2).sum() / total) + floor
        shares = np.array([total, max(len(score) - total, 1e-12)]) / len(score)
        if abs(means[0] - before) < TOLERANCE:
            break
    is_wrong = _probabilities(score, means, deviations, shares)[:, 1] > 0.5
    candidates = score[is_wrong & (score > means[0])]
    return float(candidates.min()) if len(candidates) else float("inf")


def _probabilities(score: Floats, means: Floats, deviations: Floats, shares: Floats) -> Floats:
    """Return the probability [N, 2] that each score comes from each of two normal distributions.

    Args:
        score: Scores [N].
        means: Means of the distributions [2].
        deviations: Standard deviations of the distributions [2].
        shares: Fraction of all scores that comes from each distribution [2].
    """
    distance = (score[:, None] - means) / deviations
    logs = np.log(shares + 1e-300) - np.log(deviations) - distance**2 / 2
    weights = np.exp(logs - logs.max(1, keepdims=True))
    result: Floats = weights / weights.sum(1, keepdims=True)
    return result
