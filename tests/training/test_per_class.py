"""data.per_class limits the training samples of each class."""

import numpy as np
import pytest

from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.training.splits import limit_per_class, open_manifest, split_manifest
from training_cases import configured


def test_per_class_limits_training_samples_only() -> None:
    labels = np.repeat([0, 1, 2, 3], [9, 2, 5, 7])
    whole = Manifest(
        labels=labels,
        classes=("a", "b", "c", "d"),
        split=np.where(labels < 3, "train", "test"),
        paths=tuple(f"{i}.png" for i in range(len(labels))),
    )
    kept = limit_per_class(whole, 4)
    assert np.bincount(kept.labels).tolist() == [4, 2, 4, 7]
    assert kept.paths == limit_per_class(whole, 4).paths
    assert kept.paths != whole.subset([0, 1, 2, 3, *range(9, 15), *range(16, 23)]).paths  # at random, not the first
    assert set(limit_per_class(whole, 3).paths) < set(kept.paths)  # a larger count adds samples to those of a smaller
    assert kept.fingerprint != whole.fingerprint


def test_per_class_applies_to_training_and_validation_classes() -> None:
    config = configured("pixels", "sketches", "proxy-anchor", "data.per_class=3", "data.validation=0.2", "steps=1")
    splits = split_manifest(open_manifest(config.data), config)
    assert splits.test is not None
    assert splits.validation is not None
    assert set(np.bincount(splits.train.labels)) == {3}
    assert len(splits.validation) == 3 * 34
    assert len(splits.test) == 17_300


def test_per_class_of_one_is_an_error() -> None:
    with pytest.raises(NearfarError, match=r"data\.per_class must be at least 2, got 1"):
        configured("pixels", "sketches", "proxy-anchor", "data.per_class=1")
