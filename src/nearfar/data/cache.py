"""Cache of decoded images in one memory-mapped uint8 array, which loads at memory speed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from nearfar.data.images import MAX_PIXELS, ImageReader, drop_rows, map_in_order
from nearfar.data.manifest import Array, Manifest
from nearfar.data.transforms import CenterCrop, Resize, sample_rng
from nearfar.errors import NearfarError
from nearfar.files import atomic

VERSION = 1


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
    """Return the manifest with its images as `pixels` [N, size, size, 3], memory-mapped from a file in `folder`.

    Each image is resized so that its short side is `size`, then cropped to the square at its center, so training crops
    see only this square. The name of the file is a hash of the table, of the size and modification time of every image
    file, and of `size`: if any of them changes, a new file is built. The file is written atomically.

    Args:
        manifest: A manifest of files. Others are returned unchanged.
        folder: Folder of the cache.
        size: Side of the cached images in pixels.
        workers: Number of threads that decode images.
        on_error: "raise" an error for a broken image, or "skip" it, with a note and a list next to the file.
        max_pixels: Largest image to decode.
        progress: Called with the number of images done.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if manifest.kind != "files":
        return manifest
    key = _key(manifest, size, max_pixels)
    array_file, broken_file = folder / f"{key}.npy", folder / f"{key}.broken.json"
    if not array_file.is_file():
        _build(manifest, array_file, broken_file, size, workers, on_error, max_pixels, progress)
    try:
        pixels = np.load(array_file, mmap_mode="r", allow_pickle=False)
        broken = {int(row): reason for row, reason in json.loads(broken_file.read_text("utf-8")).items()}
    except (OSError, ValueError, EOFError) as error:
        raise NearfarError(f"{array_file}: is damaged ({error}): remove it to build it again") from error
    if pixels.shape != (len(manifest), size, size, 3) or pixels.dtype != np.uint8:
        raise NearfarError(f"{array_file}: has {pixels.dtype} {pixels.shape}: remove it to build it again")
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
        del pixels
        # the list is written first, so both files are complete if the array exists
        with atomic(broken_file) as listing:
            listing.write_text(json.dumps(broken), "utf-8")


def _key(manifest: Manifest, size: int, max_pixels: int) -> str:
    digest = hashlib.sha256(f"cache {VERSION} {size} {max_pixels} {len(manifest)}".encode())
    root = manifest.root or Path()
    files = [root] if root.is_file() else [root / path for path in manifest.paths or ()]
    for path in manifest.paths or ():
        digest.update(f"{len(path)}:{path}".encode("utf-8", "surrogateescape"))
    for file in files:
        try:
            state = os.stat(file)
            digest.update(f"{state.st_size} {state.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(b"absent\n")
    return digest.hexdigest()[:32]
