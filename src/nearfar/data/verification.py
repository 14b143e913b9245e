"""Check once that all images of a dataset can be read, so that a long run does not fail on a broken file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearfar.data.cache import fingerprint_files
from nearfar.data.images import ImageReader, scan_images
from nearfar.data.manifest import Manifest
from nearfar.data.near_duplicates import Hashes
from nearfar.errors import NearfarError
from nearfar.files import atomic, user_cache

VERSION = 1
SHOWN = 3


@dataclass(frozen=True, eq=False)
class Verification:
    """Result of a check of all images.

    Attributes:
        broken: Dict that maps each row whose image cannot be read to a one-line error message with its path.
        hashes: Hash of each image [N] (see `nearfar.data.near_duplicates`), 0 for broken images.
        content: SHA-256 that changes if the content of any image file changes.
    """

    broken: dict[int, str]
    hashes: Hashes
    content: str


def verify_images(
    manifest: Manifest,
    *,
    workers: int = 1,
    say: Callable[[str], object] = lambda _: None,
    progress: Callable[[int], object] | None = None,
) -> Verification:
    """Decode every image at a small size. Return the images that cannot be read, and a hash of each image.

    The result is saved in the user's cache folder. It is used again until a path, a size or a modification time of the
    image files changes.

    Args:
        manifest: A manifest of image files.
        workers: Number of threads.
        say: Function that is called with a message before the images are read. It is not called if the saved result is
            still valid.
        progress: Function that is called with the number of finished images.
    """
    file = user_cache() / "verified" / f"{fingerprint_files(manifest, f'verified {VERSION}')}.npz"
    saved = _load(file, manifest)
    if saved is not None:
        return saved
    say(f"checking {len(manifest):,} images (once, until the files change)")
    scan = scan_images(manifest, workers=workers, progress=progress)
    result = Verification(scan.broken, scan.hashes, scan.content)
    _save(file, manifest, result)
    return result


def describe_broken(manifest: Manifest, broken: dict[int, str]) -> str:
    """Return a one-line error message that names the first broken images and says how to leave them out."""
    first = "; ".join(list(broken.values())[:SHOWN])
    more = f"; and {len(broken) - SHOWN:,} more, which `nearfar data DATA --scan` lists" if len(broken) > SHOWN else ""
    return (
        f"{manifest.source or 'the data'}: {len(broken):,} of {len(manifest):,} images cannot be read: {first}{more}. "
        "Replace them, or leave them out with --skip-broken (data.on_error=skip)"
    )


def _save(file: Path, manifest: Manifest, result: Verification) -> None:
    # messages are saved without the location of the file, which changes if the folder is moved
    reader = ImageReader(manifest)
    reasons = [message.removeprefix(reader.location(row)) for row, message in result.broken.items()]
    arrays = {
        "hashes": result.hashes,
        "rows": np.array(list(result.broken), np.int64),
        "reasons": np.array(reasons, "U"),
        "content": np.array(result.content, "U"),
    }
    # the cache only saves time, so a disk that is full or read-only is not an error
    with contextlib.suppress(NearfarError, OSError), atomic(file) as draft, open(draft, "wb") as out:
        np.savez(out, allow_pickle=False, **arrays)


def _load(file: Path, manifest: Manifest) -> Verification | None:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            hashes, content = arrays["hashes"], str(arrays["content"])
            rows, reasons = arrays["rows"].tolist(), arrays["reasons"].tolist()
    except Exception:  # missing, damaged or not readable: the images are checked again
        return None
    if hashes.shape != (len(manifest),) or hashes.dtype != np.uint64 or not all(0 <= r < len(manifest) for r in rows):
        return None
    reader = ImageReader(manifest)
    broken = {row: f"{reader.location(row)}{why}" for row, why in zip(rows, reasons, strict=True)}
    return Verification(broken, hashes, content)
