"""Queries are prepared and embedded like the samples of the index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from nearfar.data import Manifest, open_data, save_manifest
from nearfar.errors import NearfarError
from nearfar.search import Encoder, Index
from nearfar.training import Run, train
from training_cases import configured


def test_samples_are_embedded_as_in_the_run(vector_run: Run) -> None:
    manifest = vector_run.manifest()
    found, rows = Encoder(vector_run.path).embed_manifest(manifest)
    np.testing.assert_allclose(found, vector_run.embed(manifest).numpy(), atol=1e-6)
    assert rows.tolist() == list(range(240))


def test_image_file_finds_itself_and_broken_files_are_skipped(image_run: Run, image_folder: Path) -> None:
    index = Index.build(image_run, str(image_folder), progress=False)
    manifest = open_data(image_folder)
    assert manifest.paths is not None
    broken = manifest.paths.index("b/2x.png")
    assert broken not in index.ids
    assert len(index) == len(manifest) - 1
    assert [manifest.paths[i] for i in index.ids.tolist()] == index.names
    assert [manifest.classes[manifest.labels[i]] for i in index.ids.tolist()] == [
        index.label_of(row) for row in range(len(index))
    ]
    encoder = Encoder(image_run)
    for number in (0, broken + 1, len(manifest) - 1):
        distances, ids = index.search(encoder.embed_file(image_folder / manifest.paths[number]), 3)
        assert ids[0, 0] == number
        assert distances[0, 0] < 1e-5
    with pytest.raises(NearfarError, match=r"2x\.png"):
        encoder.embed_file(image_folder / "b" / "2x.png")


def test_a_drawing_finds_itself(drawing_run: Run, tmp_path: Path) -> None:
    encoder = Encoder(drawing_run)
    manifest = drawing_run.manifest()
    assert manifest.pixels is not None
    index = Index.build(drawing_run, manifest)
    Image.fromarray(manifest.pixels[17]).save(tmp_path / "drawing.png")
    distances, ids = index.search(encoder.embed_file(tmp_path / "drawing.png"), 1)
    assert ids.tolist() == [[17]]
    assert distances[0, 0] < 1e-5
    large = ImageOps.pad(Image.fromarray(manifest.pixels[17]).resize((96, 96)), (200, 96), color=0).convert("RGB")
    assert encoder.embed_images([large]).shape == (1, 8)
    assert encoder.input_shape == (1, 12, 12)


def test_ink_on_paper_is_inverted_for_white_drawings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 8)
    pixels = np.zeros((32, 16, 16), dtype=np.uint8)
    for row, label in enumerate(labels):
        pixels[row, 3 * label : 3 * label + 2, rng.integers(0, 8) :] = 255
    manifest = Manifest(labels=labels, classes=tuple("abcd"), split=["train"] * 32, pixels=pixels)
    save_manifest(manifest.split_by_class_order(), tmp_path / "lines.npz")
    run = train(configured("pixels", str(tmp_path / "lines.npz"), "supcon"), tmp_path / "run", say=lambda _: None)
    encoder = Encoder(run)
    light, dark = Image.fromarray(255 - pixels[5]), Image.fromarray(pixels[5])
    assert np.array_equal(encoder.embed_images([light]), encoder.embed_images([dark]))
    assert "white on black" in encoder.preparation


def test_color_arrays_accept_images_of_any_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (24, 20, 20, 3), dtype=np.uint8)
    manifest = Manifest(labels=np.arange(24) % 4, classes=tuple("abcd"), split=["train"] * 24, pixels=pixels)
    save_manifest(manifest.split_by_class_order(), tmp_path / "color.npz")
    settings = ["model.backbone=small-conv", "model.pretrained=false", "images.crop=16", "steps=2"]
    run = train(
        configured("pixels", str(tmp_path / "color.npz"), "supcon", *settings), tmp_path / "run", say=lambda _: None
    )
    encoder = Encoder(run)
    own = run.embed(run.manifest()).numpy()
    np.testing.assert_allclose(encoder.embed_images([Image.fromarray(pixels[3])])[0], own[3], rtol=1e-6, atol=1e-5)
    assert encoder.embed_images([Image.new("L", (300, 100))]).shape == (1, 8)


def test_a_run_on_vectors_refuses_images(vector_run: Run, image_folder: Path) -> None:
    with pytest.raises(NearfarError, match="was trained on vectors"):
        Encoder(vector_run).embed_file(image_folder / "a" / "0.png")
