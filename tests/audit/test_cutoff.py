"""The cut-off of the audit follows the amount of noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearfar.audit.cutoff import find_cutoff
from nearfar.audit.noise_benchmark import measure_cutoff
from nearfar.audit.ranking import audit
from nearfar.data import Manifest, open_data


def make_features(classes: int = 12, count: int = 50, noise: float = 0.7) -> Manifest:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), count)
    features = (rng.normal(size=(classes, 24))[labels] + noise * rng.normal(size=(len(labels), 24))).astype(np.float32)
    return Manifest(
        labels=labels, classes=tuple(map(str, range(classes))), split=["train"] * len(labels), features=features
    )


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_the_number_of_flagged_labels_follows_the_noise(rate: float) -> None:
    ((flagged, precision, recall),) = measure_cutoff(make_features(), rate=rate, seeds=1)
    assert abs(flagged - rate) < 0.03
    assert precision > 0.75
    assert recall > 0.9


def test_drawings_with_moved_labels() -> None:
    """Pixels are weak evidence: of 10% moved labels, most are found, and far fewer labels are flagged than doubted."""
    data = open_data("sketches").subset("train")
    data = data.subset(data.labels < 20).compact()
    ((flagged, precision, recall),) = measure_cutoff(data, rate=0.1, seeds=1)
    clean = replace(data, split=np.full(len(data), "train"))
    assert recall > 0.6
    assert precision > 0.3
    result = audit(np.asarray(clean.pixels, np.float32).reshape(len(clean), -1), clean.labels)
    assert flagged < 0.7 * float((result.suggested != result.labels).mean())


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.5])
def test_hard_samples_of_clean_data_are_not_called_wrong(noise: float) -> None:
    """The classes of the last case overlap, so that neighbors suggest another label for many samples."""
    clean = make_features(noise=noise)
    assert clean.features is not None
    result = audit(clean.features, clean.labels)
    assert result.flagged.mean() < 0.02
    assert noise < 1 or (result.suggested != result.labels).mean() > 0.1


def test_few_or_equal_scores_have_no_cutoff() -> None:
    reference = np.array([3.0, 4.0])
    assert find_cutoff(np.zeros(100), reference) == float("inf")
    assert find_cutoff(np.arange(5.0), reference) == float("inf")
    assert find_cutoff(np.arange(50.0), reference) == float("inf")
