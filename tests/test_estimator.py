"""MetricLearner as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from nearfar import MetricLearner


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([MetricLearner(steps=1)])
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_map_finds_the_useful_dimensions() -> None:
    x, y = make_blobs(200, centers=4, n_features=2, random_state=0)
    noisy = np.concatenate([x, 30 * np.random.default_rng(0).normal(size=(200, 6))], axis=1)
    train, test = np.arange(200) % 2 == 0, np.arange(200) % 2 == 1

    def accuracy(*steps: Any) -> float:
        model = make_pipeline(*steps, KNeighborsClassifier(5, metric="cosine"))
        return float(model.fit(noisy[train], y[train]).score(noisy[test], y[test]))

    assert accuracy(MetricLearner(dim=2, steps=200, lr=0.05)) > accuracy() + 0.2


def test_errors_name_the_problem() -> None:
    x, y = make_blobs(20, random_state=0)
    with pytest.raises(ValueError, match="unknown recipe 'proxi'"):
        MetricLearner(recipe="proxi").fit(x, y)
    with pytest.raises(ValueError, match="at least two classes"):
        MetricLearner().fit(x, np.zeros(20, int))
