"""`nearfar train FOLDER` on images: cached activations without a GPU, the whole network with one."""

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


def test_without_a_gpu_the_cache_is_beside_the_run(images: Path) -> None:
    config = configured(images, "device=cpu")
    assert config.cache.activations == str(Path("beside/activations"))
    assert config.model.train_from == 0.5
    assert (config.recipe, config.epochs) == ("proxy-anchor", 20)  # six training images


def test_with_a_gpu_the_whole_network_is_trained(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "local_device", lambda _: torch.device("cuda"))
    config = configured(images)
    assert (config.cache.activations, config.model.train_from) == (None, None)
    assert config.optimizer == configured(images).optimizer


def test_the_command_prints_its_plan_and_runs_share_the_cache(images: Path, tmp_path: Path) -> None:
    try:
        find_weights(EFFICIENTNET_LITE0_WEIGHTS)
    except NearfarError as error:
        pytest.skip(f"the pretrained weights are an extra: {error}")
    words = ["train", str(images), "--size", "32", "--epochs", "1", "--set", "data.workers=0", "--set", "threads=1"]
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
