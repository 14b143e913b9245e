"""Three small runs: on vectors, on drawings, on image files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.training import Run, train
from training_cases import configured


@pytest.fixture(scope="session")
def vector_run(vectors: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = configured("features", vectors, "proxy-anchor")
    return train(config, tmp_path_factory.mktemp("runs") / "vectors", say=lambda _: None)


@pytest.fixture(scope="session")
def drawing_run(drawings: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = configured("pixels", drawings, "supcon")
    return train(config, tmp_path_factory.mktemp("runs") / "drawings", say=lambda _: None)


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write six classes of five color PNG files, and one broken file."""
    folder = tmp_path_factory.mktemp("data") / "images"
    rng = np.random.default_rng(0)
    for name in "abcdef":
        (folder / name).mkdir(parents=True)
        kind = rng.integers(0, 2, (40, 50, 3)) * 180
        for i in range(5):
            pixels = np.clip(kind + rng.normal(0, 15, (40, 50, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    (folder / "b" / "2x.png").write_bytes(b"this is not an image")
    return folder


@pytest.fixture(scope="session")
def image_run(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    small = ["model.backbone=small-conv", "model.pretrained=false", "images.crop=32", "data.on_error=skip", "steps=4"]
    small += ["model.mirror=true", "data.workers=0", "batches.size=12"]
    config = configured("files", str(image_folder), "supcon", *small)
    return train(config, tmp_path_factory.mktemp("runs") / "images", say=lambda _: None)
