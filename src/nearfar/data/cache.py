"""Decoded pictures in one mapped uint8 array, so that a small data set loads at memory speed after the first time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from nearfar.data.images import MAX_PIXELS, ImageReader, drop_rows, ordered_map
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
    """The manifest with its pictures as `pixels` [N, size, size, 3], mapped from a file in `folder`.

    Each picture is resized so that its short side is `size`, then cut to the square in its middle: what lies outside is
    lost to training crops. The file's name is a hash of the table, of every file's size and time of change, and of the
    size: when anything changes another file is built, and a file that exists is complete (it is renamed when done).
    With on_error="skip" broken pictures are left out, noted, and remembered beside the file.
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
        raise NearfarError(f"{array_file}: is damaged ({error}): remove it, it is built again") from error
    if pixels.shape != (len(manifest), size, size, 3) or pixels.dtype != np.uint8:
        raise NearfarError(f"{array_file}: holds {pixels.dtype} {pixels.shape}: remove it, it is built again")
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
    resize, crop, unused = Resize(size), CenterCrop(size), sample_rng(0, 0, 0)

    def prepare(row: int) -> Array | NearfarError:
        try:
            picture = reader.read_image(row, draft=2 * size)
        except NearfarError as error:
            return error
        return np.asarray(crop(resize(picture, unused), unused))

    broken: dict[int, str] = {}
    with atomic(array_file) as draft:
        pixels = np.lib.format.open_memmap(draft, "w+", np.uint8, (len(manifest), size, size, 3))
        for row, picture in enumerate(ordered_map(prepare, range(len(manifest)), workers)):
            if isinstance(picture, NearfarError):
                if on_error == "raise":
                    raise picture
                broken[row] = str(picture)
            else:
                pixels[row] = picture
            if progress is not None:
                progress(row + 1)
        pixels.flush()
        del pixels
        # first the list, then the array whose presence says that both are complete
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
