import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from data import builders
from nearfar.data import Manifest, open_data
from nearfar.report.thumbnails import Thumbnails


def opened(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert head == f"data:image/{image.format.lower()};base64"
    return image


def arrays(pixels: np.ndarray) -> Manifest:
    return Manifest(labels=[0] * len(pixels), classes=("a",), split=["test"] * len(pixels), pixels=pixels)


def drawing() -> np.ndarray:
    pixels = np.zeros((2, 28, 28), np.uint8)
    pixels[:, 10:18, 10:18] = 255
    return pixels


def test_drawings_on_black_become_black_on_white():
    thumbnails = Thumbnails(arrays(drawing()))
    assert thumbnails.kind == "drawings"
    large = np.asarray(opened(thumbnails.encode_large(0)).convert("L"))
    assert large.shape == (96, 96)
    assert large[2, 2] == 255
    assert large[48, 48] == 0


def test_small_drawings_are_colored_on_a_transparent_background():
    small = np.asarray(opened(Thumbnails(arrays(drawing())).encode_small(0, "#0072b2")).convert("RGBA"))
    assert small.shape == (28, 28, 4)
    assert small[0, 0, 3] == 0
    assert small[14, 14].tolist() == [0, 0x72, 0xB2, 255]


def test_gray_on_white_stays():
    thumbnails = Thumbnails(arrays(255 - drawing()))
    assert thumbnails.kind == "images"
    assert np.asarray(opened(thumbnails.encode_large(0)).convert("L"))[2, 2] > 250


def test_color_arrays_are_shown_as_they_are():
    pixels = np.zeros((1, 40, 60, 3), np.uint8)
    pixels[..., 0] = 200
    thumbnails = Thumbnails(arrays(pixels))
    assert opened(thumbnails.encode_large(0)).size == (60, 40)
    assert opened(thumbnails.encode_small(0)).size == (44, 44)
    assert np.abs(np.asarray(opened(thumbnails.encode_large(0)), int)[20, 30] - [200, 0, 0]).max() < 12


def test_a_file_that_cannot_be_read_has_no_thumbnail(tmp_path):
    root = builders.folder(tmp_path / "images", {"ant": 2, "owl": 2})
    data = open_data(str(root))
    builders.write(root / "owl" / "1.jpg", b"not a picture")
    thumbnails = Thumbnails(data)
    assert opened(thumbnails.encode_large(0)).size == (96, 96)
    assert opened(thumbnails.encode_small(0)).size == (44, 44)
    assert thumbnails.encode_large(3) is None
    assert thumbnails.encode_small(3) is None


@pytest.mark.parametrize("there", [True, False])
def test_vectors_are_shown_by_their_files_if_those_exist(tmp_path, there):
    data = open_data(str(builders.folder(tmp_path / "images", {"ant": 2, "owl": 2})))
    data = replace(data, features=np.ones((4, 3), np.float32), root=data.root if there else tmp_path)
    thumbnails = Thumbnails(data)
    assert thumbnails.kind == ("images" if there else "text")
    assert (thumbnails.encode_large(1) is not None) == there
    assert Thumbnails(replace(data, root=None, paths=None)).kind == "text"
