"""Models of transformers go through train, eval, index, search, export and reload, without their own files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar
from command_line import done
from nearfar.runs import Run
from small_transformers import saved_vision


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write six classes of five images. A class has a color of its own."""
    folder = tmp_path_factory.mktemp("data") / "colors"
    rng = np.random.default_rng(0)
    for name, color in zip("abcdef", rng.integers(0, 200, (6, 3)), strict=True):
        (folder / name).mkdir(parents=True)
        for i in range(5):
            pixels = np.clip(color + rng.normal(0, 10, (40, 50, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.parametrize("kind", ["dinov2", "clip"])
def test_train_eval_index_search_export_reload(images: Path, tmp_path: Path, kind: str) -> None:
    saved_vision(tmp_path / "model", kind)
    run, query = tmp_path / "run", images / "f" / "3.png"
    settings = ["images.crop=32", "model.dim=8", "model.train_from=layers.1", "batches.size=8", "data.workers=0"]
    options = [part for setting in settings for part in ("--set", setting)]
    backbone = f"transformers:{tmp_path / 'model'}"
    done("train", images, "--backbone", backbone, "--epochs", 2, *options, "--out", run)
    scores = json.loads((run / "scores.json").read_bytes())
    (tmp_path / "model").rename(tmp_path / "elsewhere")  # the run has its own copy of the architecture and weights

    again = json.loads(done("eval", run, "--json"))
    assert again["values"]["map@r"] == pytest.approx(scores["test"]["map@r"])
    done("index", run, images)
    (found,) = json.loads(done("search", run, query, "-k", 3, "--json"))
    assert found["results"][0]["name"] == "f/3.png"
    printed = done("export", run, "--format", "onnx")
    assert "model.onnx" in printed

    expected = nearfar.load(run).encode([query])
    saved = Run(run).save_pretrained(tmp_path / "shared")
    np.testing.assert_allclose(nearfar.load(saved).encode([query]), expected, rtol=1e-5, atol=1e-6)
