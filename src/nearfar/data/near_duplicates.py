"""Find images that are nearly the same, such as burst shots, by a hash of their brightness differences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearfar.data.manifest import Ints, Words
from nearfar.formatting import counted

Hashes = NDArray[np.uint64]

MAX_DISTANCE = 4  # bits; re-encoded and slightly moved images differ less, different photos differ by about 32 of 64
BANDS = ((0, 13), (13, 13), (26, 13), (39, 13), (52, 12))  # (shift, bits); one more band than MAX_DISTANCE
MIN_BITS = 6  # hashes with fewer set or unset bits are those of almost empty images, which are not compared
MAX_GROUP = 4096  # largest number of images with an equal band that are compared with each other
NOTABLE = 0.01  # fraction of the test images


def hash_image(image: Image.Image) -> int:
    """Return the 64-bit difference hash of an image: for each cell of a 9 x 8 grid, whether the next one is brighter.

    >>> hash_image(Image.new("RGB", (20, 20), (1, 2, 3)))
    0
    """
    gray = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BILINEAR), dtype=np.int16)
    return int.from_bytes(np.packbits(gray[:, 1:] > gray[:, :-1]).tobytes(), "big")


def find_near_duplicates(hashes: Hashes) -> list[tuple[int, int]]:
    """Return all pairs of rows whose hashes differ in at most 4 bits, each with the smaller row first.

    Two such hashes agree in at least one of five bands of bits, so only rows with an equal band are compared. If more
    than 4,096 rows have an equal band, only the first 4,096 of them are compared.

    >>> rows = np.array([0x0123456789ABCDEF, 0xFEDCBA9876543210, 0x0123456789ABCDEE], dtype=np.uint64)
    >>> find_near_duplicates(rows)
    [(0, 2)]
    """
    bits = np.array([int(value).bit_count() for value in hashes.tolist()])
    usable = np.flatnonzero((bits >= MIN_BITS) & (bits <= 64 - MIN_BITS))
    pairs: set[tuple[int, int]] = set()
    for shift, width in BANDS:
        band = (hashes[usable] >> np.uint64(shift)) & np.uint64((1 << width) - 1)
        order = usable[np.argsort(band, kind="stable")]
        _, starts = np.unique(np.sort(band), return_index=True)
        for group in np.split(order, starts[1:]):
            if len(group) > 1:
                pairs |= _close_pairs(hashes, np.sort(group)[:MAX_GROUP])
    return sorted(pairs)


def _close_pairs(hashes: Hashes, rows: Ints) -> set[tuple[int, int]]:
    values = hashes[rows]
    pairs = set()
    for i in range(len(rows) - 1):
        different = np.ascontiguousarray(values[i + 1 :] ^ values[i]).view(np.uint8).reshape(-1, 8)
        distance = np.unpackbits(different, axis=1).sum(1)
        pairs |= {(int(rows[i]), int(rows[i + 1 + j])) for j in np.flatnonzero(distance <= MAX_DISTANCE).tolist()}
    return pairs


def describe_near_duplicates(hashes: Hashes, split: Words) -> str:
    """Describe how many test images have a near-duplicate in the training or test split.

    Returns:
        One sentence, or an empty string if fewer than 1% of the test images have a near-duplicate.
    """
    is_test = split == "test"
    in_train, in_test = set[int](), set[int]()
    for pair in find_near_duplicates(hashes):
        for row, other in (pair, pair[::-1]):
            if is_test[row]:
                (in_test if is_test[other] else in_train).add(row)
    total, count = int(is_test.sum()), len(in_train | in_test)
    if not total or count < NOTABLE * total:
        return ""
    return (
        f"{count:,} of {counted(total, 'test image')} ({count / total:.0%}) are near-duplicates of another image "
        f"({len(in_train):,} of a training image, {len(in_test):,} of another test image), so scores are higher than "
        "for new images"
    )
