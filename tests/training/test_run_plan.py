"""The plan of a run on image files is shown before it starts, and does not change the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.training import Config
from nearfar.training.memory import estimate_memory
from nearfar.training.run_plan import RunPlan, count_forwards, describe_plan, overlap, plan_run
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from training_cases import configured


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in "abcd":
        (folder / name).mkdir()
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    network = ("model.backbone=small", "model.pretrained=false", "model.pooling=average", "model.freeze_bn=false")
    sizes = ("images.crop=32", "images.train_crop=24", "batches.size=6", "steps=null", "epochs=3", "data.workers=0")
    return configured("files", str(folder), "proxy-anchor", *network, *sizes)


def make_trainer(config: Config, out: Path, **options: Any) -> Trainer:
    return Trainer(config, open_manifest(config.data), out, **{"say": lambda _: None, **options})


def test_a_plan_has_the_steps_sizes_time_and_memory(config: Config, tmp_path: Path) -> None:
    trainer = make_trainer(config, tmp_path / "run")
    parts = {"train": (trainer.splits.train, trainer.train_loader), **trainer.evaluated}
    plan = plan_run(config, trainer.state.embedder, parts)
    assert (plan.train_size, plan.test_size, plan.steps, plan.batch_size) == (24, 32, 6, 6)
    assert plan.seconds > 0
    step = estimate_memory(trainer.state, trainer.train_loader)
    assert step is not None
    assert plan.memory > step


def test_longer_runs_take_longer(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances by one second per reading, the times are exact."""
    ticks = iter(range(10**6))
    monkeypatch.setattr("nearfar.training.run_plan.now", lambda: next(ticks))
    trainer = make_trainer(config, tmp_path / "run")
    parts = {"train": (trainer.splits.train, trainer.train_loader), **trainer.evaluated}
    short = plan_run(config, trainer.state.embedder, parts)
    long = plan_run(replace(config, epochs=5), trainer.state.embedder, parts)
    # every part of the measurement takes one second for 12 images, so loading and a pass take 2 / 12 s per image
    assert long.seconds - short.seconds == pytest.approx(2 * 12 * 2 / 12)
    # 3 epochs of 12 images, one pass over them to initialize, and the 12 test images before and after training
    assert short.seconds == pytest.approx((3 * 12 + 12 + 2 * 12) * 2 / 12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 100 + 2 * 40 + 6 * 10),
        ({"untrained": False}, 100 + 40 + 6 * 10),
        ({"test": False}, 100 + 6 * 10),
    ],
)
def test_evaluations_are_counted(config: Config, settings: dict[str, bool], expected: int) -> None:
    forwards = count_forwards(replace(config, **settings), 100, {"test": 40, "validation": 10}, epochs=6)
    assert forwards == expected
    by_test = replace(config, **settings, select=replace(config.select, by="test", every=2))
    assert count_forwards(by_test, 100, {"test": 40}, epochs=6) == expected - 6 * 10 + 6 * 40


@pytest.mark.parametrize(("workers", "load", "expected"), [(0, 1.0, 3.0), (1, 1.0, 2.0), (1, 5.0, 5.0), (2, 6.0, 4.0)])
def test_workers_load_while_the_network_computes(
    workers: int, load: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    loader: Any = SimpleNamespace(workers=workers)
    assert overlap(load, 2.0, loader, torch.device("cpu")) == expected


def test_a_description_names_network_sizes_time_and_memory(config: Config, tmp_path: Path) -> None:
    network = make_trainer(config, tmp_path / "run").state.embedder
    plan = RunPlan(train_size=24, test_size=32, steps=1200, batch_size=64, seconds=600, memory=3 * 2**29)
    assert describe_plan(config, network, plan) == [
        "plan: train small, all blocks, on images of 24 pixels, and test it at 32 pixels",
        "plan: this trains 1,200 steps of 64 in about 10 min, with about 1.5 GB of memory",
    ]
    network.freeze_below("block2")
    first = describe_plan(config, network, replace(plan, train_size=32))[0]
    assert first == "plan: train small, from block2 up, on images of 32 pixels"


def test_a_plan_does_not_change_the_trained_weights(config: Config, tmp_path: Path) -> None:
    messages: list[str] = []
    trainers = [
        make_trainer(config, tmp_path / "with", plan=True, say=messages.append),
        make_trainer(config, tmp_path / "without"),
    ]
    assert sum(text.startswith("plan: ") for text in messages) == 2
    for trainer in trainers:
        trainer.fit(progress=False, stop_after=3)
    one, other = (trainer.state.embedder.state_dict() for trainer in trainers)
    assert all(torch.equal(one[name], other[name]) for name in one)
