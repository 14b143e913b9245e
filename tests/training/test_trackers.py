from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nearfar.errors import NearfarError
from nearfar.training import train
from nearfar.training.trackers import open_trackers
from training_cases import configured


def test_tensorboard_gets_what_the_log_gets(vectors: str, tmp_path: Path) -> None:
    run = train(configured("features", vectors, "supcon", "track=[tensorboard]"), tmp_path / "run", say=lambda _: None)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    told = {event.step: event.value for event in events.Scalars("loss")}
    logged = {entry["step"]: entry["loss"] for entry in run.log() if entry["kind"] == "step"}
    assert told == pytest.approx(logged)
    assert "test/recall@1" in events.Tags()["scalars"]


def test_mlflow_writes_to_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'm.db'}")
    monkeypatch.chdir(tmp_path)
    (tracker,) = open_trackers(("mlflow",), tmp_path, {"seed": 1})
    tracker.log({"test/recall@1": 0.5}, 3)
    tracker.close()
    found = mlflow.search_runs(search_all_experiments=True)
    assert found["metrics.test/recall_at_1"].tolist() == [0.5]


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (tracker,) = open_trackers(("wandb",), tmp_path, {"seed": 1})
    tracker.log({"loss": 0.5}, 3)
    tracker.close()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_an_unknown_tracker_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NearfarError, match="did you mean 'tensorboard'"):
        open_trackers(("tensorbord",), tmp_path, {})


def test_a_tracker_that_is_not_installed_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(NearfarError, match=r"pip install .*track"):
        open_trackers(("wandb",), tmp_path, {})
