"""`log_train` logs scores and compactness of training classes without changing the run or its id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearfar.suites.config_id import config_id
from nearfar.suites.plots.trained_run import load_trained_run
from nearfar.training import Run, train, trainer
from nearfar.training.class_subset import sample_whole_classes
from training_cases import configured


def test_it_is_logged_each_epoch_and_changes_nothing_else(
    vectors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "MAX_TRAIN_SCORED", 45)
    config = configured(
        "features", vectors, "supcon", "data.validation=0.34", "batches.classes=4", "batches.per_class=5"
    )
    plain = train(config, tmp_path / "plain")
    told = train(replace(config, log_train=True), tmp_path / "told")
    assert config_id(replace(config, log_train=True)) == config_id(config)

    def epochs(run: Run) -> list[dict[str, object]]:
        return [entry for entry in run.log() if entry["kind"] == "epoch"]

    found = epochs(told)
    assert len(found) == 3
    for entry in found:
        scores = entry.pop("train")
        assert isinstance(scores, dict)
        assert 0 < scores["recall@1"] <= 1
        compactness = entry.pop("compactness")
        assert isinstance(compactness, dict)
        assert set(compactness) == {"samples"}  # supcon has no proxies
        assert -1 < compactness["samples"] < 1
    assert found == epochs(plain)
    assert {k: v for k, v in told.results().items() if k != "seconds"} == {
        k: v for k, v in plain.results().items() if k != "seconds"
    }


def test_the_last_compactness_is_that_of_the_trained_run(vectors: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "mpa", "loss.proxies_per_class=3", "log_train=true")
    run = train(config, tmp_path / "run", say=lambda _: None)
    entries = [entry["compactness"] for entry in run.log() if entry["kind"] == "epoch"]
    assert len(entries) > 1
    trained = load_trained_run(tmp_path / "run")
    assert trained.proxies is not None
    assert trained.proxies.shape == (6, 3, 8)
    for name, x in (("samples", trained.embeddings), ("proxies", trained.proxies.reshape(18, 8))):
        cosines = x @ x.T
        want = (cosines.sum() - cosines.trace()) / (len(x) * (len(x) - 1))
        assert entries[-1][name] == pytest.approx(float(want), abs=1e-5)
        assert entries[0][name] != entries[-1][name]


def test_samples_of_whole_classes_up_to_a_limit() -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(30), 7))
    rows = sample_whole_classes(labels, 50)
    assert len(rows) == 49
    assert set(np.bincount(labels[rows]).tolist()) == {0, 7}
    assert rows.tolist() == sample_whole_classes(labels, 50).tolist()
    one_class = sample_whole_classes(labels, 5)
    assert one_class.tolist() == np.flatnonzero(labels == labels[one_class[0]]).tolist()
    assert len(np.unique(labels[sample_whole_classes(labels, 5, min_classes=2)])) == 2
