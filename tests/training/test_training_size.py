"""Training images can be smaller than test images (images.train_crop)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.errors import NearfarError
from nearfar.training.memory import estimate_memory
from nearfar.training.splits import open_manifest
from nearfar.training.trainer import Trainer
from training_cases import configured


@pytest.fixture
def photos(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            pixels = rng.integers(0, 255, (70, 80, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return str(tmp_path / "photos")


def make_trainer(photos: str, tmp_path: Path, train_crop: object) -> Trainer:
    network = ("model.backbone=small", "model.pretrained=false", "model.pooling=average", "model.train_from=null")
    sizes = ("images.crop=64", f"images.train_crop={train_crop}", "batches.size=4")
    config = configured("files", photos, "proxy-anchor", *network, *sizes)
    return Trainer(config, open_manifest(config.data), tmp_path / "run", say=lambda _: None)


@pytest.mark.parametrize(("train_crop", "side"), [("null", 64), (40, 40), (0.5, 32), (0.51, 64), (0.1, 32)])
def test_only_training_images_have_the_size(photos: str, tmp_path: Path, train_crop: object, side: int) -> None:
    images = make_trainer(photos, tmp_path, train_crop).train_loader.dataset
    assert images.fetch([0, 1], train=True).shape == (2, 3, side, side)
    assert images.fetch([0, 1]).shape == (2, 3, 64, 64)


def test_smaller_training_images_need_less_memory(photos: str, tmp_path: Path) -> None:
    """A quarter of the pixels needs a quarter of the activations. The memory of everything else stays the same."""
    sizes = []
    for crop in (64, 32, 16):
        trainer = make_trainer(photos, tmp_path, crop)
        size = estimate_memory(trainer.state, trainer.train_loader)
        assert size is not None
        sizes.append(size)
    assert sizes[0] - sizes[1] == pytest.approx(4 * (sizes[1] - sizes[2]), rel=0.02)
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize(("train_crop", "message"), [(1.5, "or a fraction below 1, got 1.5"), (0, "must be above 0")])
def test_a_size_that_is_neither_pixels_nor_a_fraction(
    photos: str, tmp_path: Path, train_crop: object, message: str
) -> None:
    with pytest.raises(NearfarError, match=f"images.train_crop must be .*{message}|images.train_crop {message}"):
        make_trainer(photos, tmp_path, train_crop)
