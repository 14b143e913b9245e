"""Query images are converted to the format of a dataset."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearfar.data import load_sketches
from nearfar.data.manifest import Array
from nearfar.data.pixels import convert_drawing, convert_image


@pytest.fixture
def own() -> Array:
    data = load_sketches()
    assert data.pixels is not None
    drawing: Array = data.pixels[4321]
    return drawing


def test_an_image_of_a_drawing_is_moved_scaled_and_inverted(own: Array) -> None:
    paper = Image.new("L", (300, 200), 255)
    paper.paste(Image.fromarray(255 - own).resize((112, 112)), (60, 50))
    found = convert_drawing(paper.convert("RGB"), (28, 28))
    assert np.corrcoef(found.ravel(), own.ravel())[0, 1] > 0.8
    assert found.max() == 255
    assert not convert_drawing(Image.new("RGB", (50, 40), "white"), (28, 28)).any()


def test_a_drawing_of_the_dataset_is_unchanged(own: Array) -> None:
    for pixels in (own, 255 - own):
        assert (convert_image(Image.fromarray(pixels), (28, 28), drawings=True) == own).all()


@pytest.mark.parametrize("shape", [(20, 40), (40, 20)])
def test_ink_fills_the_shape_and_keeps_its_proportions(shape: tuple[int, int]) -> None:
    paper = np.full((300, 300), 255, np.uint8)
    paper[100:200, 150:250] = 0
    found = convert_drawing(Image.fromarray(paper), shape)
    wanted = np.zeros(shape, np.uint8)
    wanted[:20, :20] = 255
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("shape", [(12, 16), (12, 16, 3)])
def test_other_images_are_cropped_about_their_center(shape: tuple[int, ...]) -> None:
    wide = np.zeros((60, 200, 3), np.uint8)
    wide[:, 40:160] = (250, 40, 90)
    found = convert_image(Image.fromarray(wide), shape, drawings=False)
    gray = round(0.299 * 250 + 0.587 * 40 + 0.114 * 90)
    assert np.array_equal(found, np.broadcast_to(gray if len(shape) == 2 else (250, 40, 90), shape))
    same = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(convert_image(Image.fromarray(same), shape, drawings=False), same)
