"""Cache of decoded and resized images in one memory-mapped uint8 array, so that later epochs decode no files."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from nearfar.data.digest import digest_array
from nearfar.data.images import MAX_PIXELS, ImageReader, drop_rows, map_in_order
from nearfar.data.manifest import Array, Manifest
from nearfar.data.transforms import CenterCrop, Resize, sample_rng
from nearfar.errors import NearfarError
from nearfar.files import atomic, remove_drafts

VERSION = 2
CHECKED_IMAGES = 64


def cache_images(
    manifest: Manifest,
    folder: Path,
    *,
    size: int,
    workers: int = 1,
    on_error: Literal["raise", "skip"] = "raise",
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int], object] | None = None,
) -> Manifest:
    """Return the manifest with its N images as `pixels` [N, size, size, 3], memory-mapped from a file in `folder`.

    Each image is resized so that its short side is `size` and then cropped to the square at its center. Random crops in
    training are taken from this square. The name of the cache file is a hash of the image paths, the size and
    modification time of the image files, `size` and `max_pixels`. If any of these changes, a new file is built. The
    file is written atomically.

    Args:
        manifest: A manifest of image files. Any other manifest is returned unchanged.
        folder: Folder for cache files.
        size: Side of the cached images in pixels.
        workers: Number of threads that decode images.
        on_error: With "raise", a broken image raises an error. With "skip", it is left out, counted in the notes of the
            manifest, and listed in a file next to the cache file.
        max_pixels: Images with more pixels than this count as broken.
        progress: Function that is called with the number of finished images.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if manifest.kind != "files":
        return manifest
    key = fingerprint_files(manifest, f"cache {VERSION} {size} {max_pixels}")
    array_file, broken_file = folder / f"{key}.npy", folder / f"{key}.broken.json"
    if not array_file.is_file():
        _build(manifest, array_file, broken_file, size, workers, on_error, max_pixels, progress)
    try:
        pixels = np.load(array_file, mmap_mode="r", allow_pickle=False)
        about = json.loads(broken_file.read_text("utf-8"))
        broken = {int(row): reason for row, reason in about["broken"].items()}
        checksums = {int(row): int(value) for row, value in about["checksums"].items()}
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise NearfarError(f"{array_file} is damaged ({error}): delete it to build it again") from error
    if pixels.shape != (len(manifest), size, size, 3) or pixels.dtype != np.uint8:
        found = f"{pixels.dtype} of shape {list(pixels.shape)}"
        expected = f"uint8 of shape {[len(manifest), size, size, 3]}"
        raise NearfarError(f"{array_file} must hold {expected}, got {found}: delete it to build it again")
    wrong = [row for row, value in checksums.items() if zlib.crc32(pixels[row]) != value]
    if wrong:
        raise NearfarError(
            f"{array_file} is damaged (the checksum of image {wrong[0]} differs): delete it to build it again"
        )
    if broken and on_error == "raise":
        raise NearfarError(next(iter(broken.values())))
    return drop_rows(replace(manifest, pixels=pixels, digest=key), broken)


def _build(
    manifest: Manifest,
    array_file: Path,
    broken_file: Path,
    size: int,
    workers: int,
    on_error: str,
    max_pixels: int,
    progress: Callable[[int], object] | None,
) -> None:
    reader = ImageReader(manifest, max_pixels=max_pixels)
    resize, crop, rng = Resize(size), CenterCrop(size), sample_rng(0, 0, 0)

    def prepare(row: int) -> Array | NearfarError:
        try:
            image = reader.read_image(row, draft=2 * size)
        except NearfarError as error:
            return error
        return np.asarray(crop(resize(image, rng), rng))

    broken: dict[int, str] = {}
    remove_drafts(array_file.parent)
    with atomic(array_file) as draft:
        pixels = np.lib.format.open_memmap(draft, "w+", np.uint8, (len(manifest), size, size, 3))
        for row, image in enumerate(map_in_order(prepare, range(len(manifest)), workers)):
            if isinstance(image, NearfarError):
                if on_error == "raise":
                    raise image
                broken[row] = str(image)
            else:
                pixels[row] = image
            if progress is not None:
                progress(row + 1)
        pixels.flush()
        # reading a whole cache would take too long at every start, so only some images have a checksum
        rows = np.unique(np.linspace(0, len(manifest) - 1, CHECKED_IMAGES).astype(int)).tolist()
        checksums = {row: zlib.crc32(pixels[row]) for row in rows}
        del pixels
        # write this list before `atomic` renames the array, so that an array file never exists without its list
        with atomic(broken_file) as listing:
            listing.write_text(json.dumps({"broken": broken, "checksums": checksums}), "utf-8")


def fingerprint_files(manifest: Manifest, prefix: str) -> str:
    """Return a hash of the string `prefix`, the paths of a manifest, and the sizes and modification times of its files.

    Images in an archive, a Parquet file or tar shards have no files of their own. The size and modification time of the
    archive, the Parquet file or the shards are used instead.
    """
    digest = hashlib.sha256(f"{prefix} {len(manifest)}".encode())
    _add_files(digest, manifest)
    return digest.hexdigest()[:32]


def fingerprint_images(manifest: Manifest) -> str:
    """Return a hash of the images of a manifest in their order, without labels and splits.

    Image arrays are hashed by their content, and image files by their path, size and modification time.
    """
    if manifest.pixels is not None:
        return manifest.digest or digest_array(manifest.pixels)
    digest = hashlib.sha256(f"images {len(manifest)}".encode())
    _add_files(digest, manifest)
    return digest.hexdigest()


def _add_files(digest: hashlib._Hash, manifest: Manifest) -> None:
    """Update a hash with the paths of all images, and with the size and modification time of each file.

    See `fingerprint_files` for images that have no files of their own.
    """
    root = manifest.root or Path()
    files = [root] if root.is_file() else [root / path for path in manifest.paths or ()]
    if manifest.items is not None:
        files = list(manifest.items.files)
    for path in manifest.paths or ():
        digest.update(f"{len(path)}:{path}".encode("utf-8", "surrogateescape"))
    for file in files:
        try:
            state = os.stat(file)
            digest.update(f"{state.st_size} {state.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(b"absent\n")
