"""The page and `nearfar search` prepare an image in the same way."""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from nearfar.cli import main
from nearfar.data import Manifest, save_manifest
from nearfar.search import Encoder
from nearfar.serve.collection import Collection, open_collection
from nearfar.training import train
from training_cases import configured


def off_center(pixels: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """Return dark ink on white paper, enlarged four times, near the lower right corner."""
    ink = Image.fromarray(255 - pixels)
    ink = ink.resize((4 * ink.width, 4 * ink.height))
    paper = Image.new("RGB", size, "white")
    paper.paste(ink, (size[0] - ink.width - 5, size[1] - ink.height - 9))
    return paper


def test_command_and_page_find_the_same(
    client: httpx.Client, collection: Collection, run_path: Path, tmp_path: Path
) -> None:
    assert collection.manifest.pixels is not None
    file = tmp_path / "ink.png"
    off_center(collection.manifest.pixels[31], (300, 210)).save(file)
    page = client.post(
        "/api/search", params={"k": 8}, content=file.read_bytes(), headers={"content-type": "image/png"}
    ).json()["neighbors"]
    done = CliRunner().invoke(main, ["search", str(run_path), str(file), "-k", "8", "--json"])
    assert done.exit_code == 0, done.output
    (command,) = json.loads(done.stdout)
    assert [hit["id"] for hit in command["results"]] == [hit["id"] for hit in page]
    np.testing.assert_allclose(
        [hit["distance"] for hit in command["results"]], [hit["distance"] for hit in page], atol=1e-5
    )


@pytest.mark.parametrize(
    ("shape", "drawings"), [((16, 16), True), ((20, 12), True), ((16, 16), False), ((16, 20, 3), False)]
)
def test_encoder_and_page_embed_an_image_alike(shape: tuple[int, ...], drawings: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(60, 255, (24, *shape), dtype=np.uint8)
    if drawings:
        pixels[rng.random(pixels.shape) < 0.8] = 0
    manifest = Manifest(labels=np.arange(24) % 4, classes=tuple("abcd"), split=["train"] * 24, pixels=pixels)
    save_manifest(manifest.split_by_class_order(), tmp_path / "data.npz")
    color = ["model.backbone=small-conv", "model.pretrained=false", "images.crop=16"] if len(shape) == 3 else []
    config = configured("pixels", str(tmp_path / "data.npz"), "supcon", "steps=2", *color)
    run = train(config, tmp_path / "run", say=lambda _: None)
    encoder, queries = Encoder(run), open_collection(run.path, say=lambda _: None).queries
    assert queries.accepts_drawings == drawings
    sheet = off_center(pixels[3], (150, 130))
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG")
    with torch.no_grad():
        page = encoder.network(queries.read_image(buffer.getvalue()).x[None]).numpy()
    np.testing.assert_allclose(encoder.embed_images([sheet]), page, rtol=0, atol=1e-4)
    white = encoder.embed_images([Image.new("RGB", sheet.size, "white")])
    assert np.abs(page - white).max() > 1e-2
