import os
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from data import builders
from data.builders import encoded, make_image, write
from nearfar.data import decode_image, drop_rows, open_data, scan_images
from nearfar.data.images import ImageReader
from nearfar.errors import NearfarError


def close(a, b, tolerance=12):
    return np.abs(np.asarray(a, dtype=int) - np.asarray(b, dtype=int)).mean() < tolerance


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "TIFF", "PPM", "GIF"])
def test_formats(kind):
    out = decode_image(encoded(make_image(1, (40, 30)), kind), "x")
    assert out.mode == "RGB"
    assert out.size == (40, 30)
    assert close(out, make_image(1, (40, 30)), 20)


def test_cmyk_and_gray_jpeg():
    image = make_image(2, (40, 30))
    assert close(decode_image(encoded(image.convert("CMYK"), "JPEG", quality=95), "x"), image)
    assert close(decode_image(encoded(image.convert("L"), "JPEG", quality=95), "x"), image.convert("L").convert("RGB"))


def test_sixteen_bits_keep_their_brightness():
    values = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    out = decode_image(encoded(Image.fromarray(values), "PNG"), "x")
    assert close(np.asarray(out)[..., 0], values / 257, 1)
    assert np.asarray(out).max() == 255
    tiff = decode_image(encoded(Image.fromarray(values.astype(np.int32)), "TIFF"), "x")
    assert close(np.asarray(tiff)[..., 0], values / 257, 1)


def test_floats_in_the_unit_range_or_not():
    unit = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
    assert np.asarray(decode_image(encoded(Image.fromarray(unit), "TIFF"), "x"))[..., 0].max() == 255
    with pytest.raises(NearfarError, match="8 or 16 bits"):
        decode_image(encoded(Image.fromarray(unit - 5), "TIFF"), "x")


def test_transparency_becomes_white():
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30] * 256)
    for data in (
        encoded(clear, "PNG"),
        encoded(Image.new("LA", (4, 4), (0, 0)), "PNG"),
        encoded(palette, "PNG", transparency=0),
        encoded(palette, "GIF", transparency=0),
        encoded(clear, "WEBP", lossless=True),
    ):
        assert decode_image(data, "x").getpixel((1, 1)) == (255, 255, 255)
    assert decode_image(encoded(palette, "PNG"), "x").getpixel((1, 1)) == (10, 20, 30)
    assert decode_image(encoded(Image.new("1", (4, 4), 1), "PNG"), "x").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    upright = make_image(3, (24, 16))
    # the image that a camera with this orientation stores
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert close(decode_image(encoded(stored, "JPEG", exif=exif, quality=95), "x"), upright)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_an_image_with_a_damaged_exif_block_is_decoded():
    data = encoded(make_image(3, (24, 16)), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert decode_image(data, "x").size == (24, 16)


def test_draft_decodes_small_but_not_below_the_requested_side():
    data = builders.jpeg(4, (640, 480), quality=95)
    assert decode_image(data, "x", draft=100).size == (160, 120)
    assert decode_image(data, "x", draft=121).size == (320, 240)
    assert decode_image(data, "x").size == (640, 480)
    assert close(decode_image(data, "x", draft=100), make_image(4, (640, 480)).resize((160, 120)))


def test_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 0, 0), (0, 255, 0))]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data, "x").getpixel((0, 0)) == (255, 0, 0)


def bomb(width, height):
    """Return a PNG whose header declares a size, with an empty data stream."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


BROKEN = {
    "empty.jpg": (b"", "is empty"),
    "text.jpg": (b"not a readable image", "not a readable image"),
    "cut.jpg": (builders.jpeg(5, (200, 200))[:900], "damaged or truncated"),
    "cut.png": (encoded(make_image(5, (200, 200)), "PNG")[:900], "damaged or truncated"),
    "head.png": (encoded(make_image(5), "PNG")[:20], "damaged|not a readable image"),
    "large.png": (bomb(9000, 9000), "has 9000 x 9000 pixels, more than the limit of 67,108,864"),
    "bomb.png": (bomb(60000, 60000), "limit"),
    "eps.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not a readable image"),
    "svg.png": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a readable image"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_broken_files_are_one_line_with_the_path(name):
    data, message = BROKEN[name]
    with pytest.raises(NearfarError, match=message) as caught:
        decode_image(data, f"some/{name}")
    assert str(caught.value).startswith(f"some/{name} ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_scan_finds_all_and_only_the_broken(tmp_path, workers):
    builders.folder(tmp_path, {"a": 20, "b": 20})
    for name, (data, _) in BROKEN.items():
        write(tmp_path / "a" / name, data)
    write(tmp_path / "b/copy.jpg", (tmp_path / "a/0.jpg").read_bytes())
    m = open_data(tmp_path)
    done = []
    found = scan_images(m, workers=workers, progress=done.append)
    assert {m.paths[row].removeprefix("a/") for row in found.broken} == set(BROKEN)
    assert done == list(range(1, len(m) + 1))
    assert found.formats == {"JPEG": 41}
    names = [tuple(m.paths[row] for row in pair) for pair in found.same_file_two_labels]
    assert names == [("a/0.jpg", "b/copy.jpg")]
    assert found.same_file_train_and_test == found.same_file_two_labels
    assert "41 JPEG, 9 broken" in str(found)
    clean = drop_rows(m, found.broken)
    assert len(clean) == 41
    assert "9 samples left out" in clean.notes[-1]
    assert drop_rows(clean, []) is clean


def test_files_that_vanish_or_block_are_errors(tmp_path):
    m = open_data(builders.folder(tmp_path, {"a": 2, "b": 1}))
    (tmp_path / "a/0.jpg").unlink()
    with pytest.raises(NearfarError, match=r"a/0\.jpg cannot be read \(No such file"):
        ImageReader(m).read_bytes(0)
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "a/0.jpg")
        with pytest.raises(NearfarError, match="is a pipe, a device or a folder, not a file"):
            ImageReader(m).read_bytes(0)
    (tmp_path / "a/1.jpg").unlink()
    (tmp_path / "a/1.jpg").mkdir()
    with pytest.raises(NearfarError, match=r"a/1\.jpg"):
        ImageReader(m).read_bytes(1)
