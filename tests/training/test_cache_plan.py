"""The plan of a run on cached activations counts what the run computes, and is shown before it starts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nearfar.data.row_store import list_stores
from nearfar.training import Config
from nearfar.training.activation_cache import ActivationCache
from nearfar.training.cache_plan import CachePlan, describe_cached_plan, plan_cached_run
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from training_cases import configured


def cached(drawings: str, folder: Path, *settings: str) -> Config:
    base = ("model.train_from=block2", "cache.views=2", f"cache.activations={folder}", "data.validation=0.25")
    return configured("pixels", drawings, "proxy-anchor", *base, *settings)


def make_cache(config: Config, out: Path) -> ActivationCache:
    plain = replace(config, cache=replace(config.cache, activations=None))
    trainer = Trainer(plain, open_manifest(config.data), out, say=lambda _: None)
    parts = {"train": (trainer.splits.train, trainer.train_loader), **trainer.evaluated}
    return ActivationCache(config, trainer.state.embedder, parts, device=torch.device("cpu"), say=lambda _: None)


def test_a_plan_counts_views_and_steps_and_writes_nothing(drawings: str, tmp_path: Path) -> None:
    cache = make_cache(cached(drawings, tmp_path / "cache"), tmp_path / "run")
    plan = plan_cached_run(cache)
    # 36 training images in two views, 12 validation and 48 test images in one
    assert (plan.images, plan.absent) == (132, 132)
    assert (plan.steps, plan.batch_size) == (12, 24)
    assert plan.size == 132 * cache.compute(cache.parts["train"][1].dataset.fetch([0])).numel() * 2  # float16
    assert plan.build_seconds > 0
    assert plan.train_seconds > 0
    assert plan.seconds == plan.build_seconds + plan.train_seconds
    assert not (tmp_path / "cache").exists()


def test_a_plan_knows_what_is_in_the_cache(drawings: str, tmp_path: Path) -> None:
    cache = make_cache(cached(drawings, tmp_path / "cache"), tmp_path / "run")
    cache.build()
    view = list_stores(tmp_path / "cache")[0]
    shutil.rmtree(view.folder)
    plan = plan_cached_run(cache)
    assert plan.absent == view.about["rows"]
    assert 132 * plan.absent_size == plan.absent * plan.size  # the views that are in the cache do not count
    cache = make_cache(cached(drawings, tmp_path / "cache"), tmp_path / "run")
    cache.build()
    plan = plan_cached_run(cache)
    assert (plan.images, plan.absent, plan.build_seconds) == (132, 0, 0)
    assert plan.size == sum(store.about["rows"] for store in list_stores(tmp_path / "cache")) * plan.size // 132
    assert describe_cached_plan(cache, plan)[1].startswith("plan: this reads 132 views of images, ")


def test_a_description_names_network_views_time_and_memory(drawings: str, tmp_path: Path) -> None:
    cache = make_cache(cached(drawings, tmp_path / "cache"), tmp_path / "run")
    plan = CachePlan(
        images=132,
        absent=100,
        size=2_000_000_000,
        steps=12,
        batch_size=24,
        build_seconds=600,
        train_seconds=7200,
        memory=3 * 2**29,
    )
    assert describe_cached_plan(cache, plan) == [
        "plan: train small at 28 pixels from block2 up; everything below is frozen and computed once, for 2 augmented "
        "views of each training image",
        f"plan: this computes 100 of 132 views of images, 1.5 GB in {tmp_path / 'cache'}, in about 10 min, then trains "
        "12 steps of 24 in about 2.0 h, with about 1.5 GB of memory",
    ]


def test_training_says_the_plan_before_it_computes(drawings: str, tmp_path: Path) -> None:
    messages: list[str] = []
    config = cached(drawings, tmp_path / "cache")
    Trainer(config, open_manifest(config.data), tmp_path / "run", say=messages.append)
    positions = [i for i, text in enumerate(messages) if text.startswith("plan: ")]
    (computed,) = [i for i, text in enumerate(messages) if text.startswith("cached ")]
    assert len(positions) == 2
    assert max(positions) < computed


def test_a_plan_does_not_change_the_trained_weights(
    drawings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cached(drawings, tmp_path / "cache")
    with_plan = Trainer(config, open_manifest(config.data), tmp_path / "one", say=lambda _: None)
    monkeypatch.setattr("nearfar.training.trainer.plan_cached_run", lambda _: None)
    monkeypatch.setattr("nearfar.training.trainer.describe_cached_plan", lambda *_: [])
    without = Trainer(config, open_manifest(config.data), tmp_path / "two", say=lambda _: None)
    for trainer in (with_plan, without):
        trainer.fit(progress=False, stop_after=4)
    for one, other in zip(with_plan.state.embedder.parameters(), without.state.embedder.parameters(), strict=True):
        assert torch.equal(one, other)
