"""Find images that are nearly the same, such as burst shots, by a hash of their brightness differences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nearfar.data.manifest import Ints, Words
from nearfar.formatting import counted

Hashes = NDArray[np.uint64]

# Two images are near-duplicates if their 64-bit hashes differ in at most this many bits. Re-encoded or slightly shifted
# copies rarely differ in more bits. Unrelated images differ in about 32 bits.
MAX_DISTANCE = 4
# The 64 bits of a hash are divided into five bands, each given as (shift, number of bits). If two hashes differ in at
# most four bits, at least one band is equal.
BANDS = ((0, 13), (13, 13), (26, 13), (39, 13), (52, 12))
MIN_BITS = 6  # hashes with fewer ones or zeros than this are ignored: most of these images are almost uniform
MAX_GROUP = 4096  # if more images than this share a band, only the first ones are compared with each other
NOTABLE = 0.01  # near-duplicates are reported if at least this fraction of the test images has one


def hash_image(image: Image.Image) -> int:
    """Return the 64-bit difference hash of an image.

    The image is reduced to 9 x 8 pixels. Each bit compares two horizontal neighbors and is 1 if the right one is
    brighter.

    >>> hash_image(Image.new("RGB", (20, 20), (1, 2, 3)))
    0
    """
    gray = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BILINEAR), dtype=np.int16)
    return int.from_bytes(np.packbits(gray[:, 1:] > gray[:, :-1]).tobytes(), "big")


def find_near_duplicates(hashes: Hashes) -> list[tuple[int, int]]:
    """Return all pairs of rows whose hashes differ in at most 4 bits, each with the smaller row first.

    Hashes with fewer than 6 ones or fewer than 6 zeros are ignored, because most of these images are almost uniform.

    Two hashes that differ in at most 4 bits agree in at least one of five bands of bits, so only rows with an equal
    band are compared. If more than 4,096 rows have an equal band, only the first 4,096 of them are compared.

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
    """Return a sentence that says how many test images have a near-duplicate, and in which splits the duplicates are.

    Return an empty string if fewer than 1% of the test images have a near-duplicate.
    """
    copies: dict[str, set[int]] = {"train": set(), "val": set(), "test": set()}
    for pair in find_near_duplicates(hashes):
        for row, other in (pair, pair[::-1]):
            if split[row] == "test":
                copies[str(split[other])].add(row)
    total, count = int((split == "test").sum()), len(set.union(*copies.values()))
    if not total or count < NOTABLE * total:
        return ""
    what = "is a near-duplicate" if count == 1 else "are near-duplicates"
    validation = f"{len(copies['val']):,} of a validation image, " if copies["val"] else ""
    return (
        f"{count:,} of {counted(total, 'test image')} ({count / total:.0%}) {what} of another image "
        f"({len(copies['train']):,} of a training image, {validation}{len(copies['test']):,} of another test image), "
        "so scores are higher than for new images"
    )
