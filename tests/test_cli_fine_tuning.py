"""`nearfar train FOLDER` on images: the defaults with and without a GPU, and cached activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from nearfar.cli import main
from nearfar.cli.train_command import configure
from nearfar.config.schema import Config
from nearfar.data.row_store import list_stores
from nearfar.errors import NearfarError
from nearfar.models import find_weights
from nearfar.models.backbones.efficientnet_lite import EFFICIENTNET_LITE0_WEIGHTS
from nearfar.runs import Run
from nearfar.training.distributed import process_group


@pytest.fixture
def images(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for label in range(4):
        folder = tmp_path / "images" / f"kind {label}"
        folder.mkdir(parents=True)
        for i in range(3):
            pixels = (rng.integers(0, 200, 3) + rng.integers(0, 40, (40, 40, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    return tmp_path / "images"


def configured(images: Path, *settings: str) -> Config:
    return configure(str(images), recipe=None, file=None, settings=settings, cache=Path("beside/activations"))[0]


def test_without_a_gpu_training_images_are_smaller(images: Path) -> None:
    config = configured(images, "device=cpu")
    assert (config.cache.activations, config.model.train_from, config.images.train_crop) == (None, None, 0.7)
    assert (config.recipe, config.epochs) == ("proxy-anchor", 20)  # six training images


def test_the_cache_of_frozen_blocks_is_beside_the_run(images: Path) -> None:
    config = configured(images, "device=cpu", "model.train_from=0.5")
    assert config.cache.activations == str(Path("beside/activations"))
    assert (config.model.train_from, config.images.train_crop) == (0.5, None)


def test_with_a_gpu_the_whole_network_is_trained(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "local_device", lambda _: torch.device("cuda"))
    config = configured(images)
    assert (config.cache.activations, config.model.train_from, config.images.train_crop) == (None, None, None)
    assert config.optimizer == configured(images).optimizer


def test_the_command_prints_its_plan(images: Path, tmp_path: Path) -> None:
    network = ("model.backbone=small", "model.pretrained=false", "model.pooling=average", "images.train_crop=24")
    words = ["train", str(images), "--size", "32", "--epochs", "1"]
    for setting in (*network, "data.workers=0", "threads=1"):
        words += ["--set", setting]
    for result in (
        CliRunner().invoke(main, [*words, "--out", str(tmp_path / "run"), "--dry-run"]),
        CliRunner().invoke(main, [*words, "--out", str(tmp_path / "run")]),
    ):
        assert result.exit_code == 0, result.output
        plan = "plan: train small, all blocks, on images of 24 pixels, and test it at 32 pixels"
        assert plan in result.output
        assert "plan: this trains 1 step of 6 in about " in result.output
    assert (tmp_path / "run" / "scores.json").is_file()


def test_the_command_prints_the_plan_of_the_cache_and_runs_share_it(images: Path, tmp_path: Path) -> None:
    try:
        find_weights(EFFICIENTNET_LITE0_WEIGHTS)
    except NearfarError as error:
        pytest.skip(f"the pretrained weights are an extra: {error}")
    words = ["train", str(images), "--size", "32", "--epochs", "1", "--set", "data.workers=0", "--set", "threads=1"]
    words += ["--set", "model.train_from=0.5"]
    dry = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "runs" / "one"), "--dry-run"])
    assert dry.exit_code == 0, dry.output
    # one view of six images for one epoch, another of them for PCA, and six test images
    assert "# plan: this computes 18 of 18 views of images" in dry.output
    assert "# estimated time: " in dry.output
    assert not (tmp_path / "runs").exists()
    first = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "runs" / "one")])
    assert first.exit_code == 0, first.output
    assert "plan: train efficientnet-lite0 at 32 pixels from blocks.8 up" in first.output
    assert "plan: this computes 18 of 18 views of images" in first.output
    assert len(list_stores(tmp_path / "runs" / "activations")) == 3
    second = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "runs" / "two"), "--lr", "1e-3"])
    assert second.exit_code == 0, second.output
    assert "plan: this reads 18 views of images" in second.output
    assert Run(tmp_path / "runs" / "two").results()["test"]
