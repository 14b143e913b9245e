"""Decode image files to upright RGB images, and scan a dataset for files that cannot be decoded."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nearfar.data.layouts.archive import Archive, is_archive, load_archive
from nearfar.data.layouts.paths import read_regular
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError

# Formats that Pillow decodes itself. Other formats are refused before their code runs (EPS would start Ghostscript).
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
MAX_PIXELS = 1 << 26
SCAN_SIDE = 32
SHOWN = 20

T = TypeVar("T")


def decode_image(data: bytes, name: str, *, draft: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode the bytes of a file to an upright RGB image.

    The EXIF orientation is applied. CMYK, gray, palette and 16-bit images are converted to RGB, transparent pixels
    become white, and only the first frame of an animation is used.

    Args:
        data: The bytes of the file.
        name: Name of the file, for messages.
        draft: Shortest side that is needed. A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that is large enough.
        max_pixels: Largest number of pixels to decode, because a small file can require gigabytes of memory.

    Raises:
        NearfarError: If the file is empty, truncated, damaged, too large or has another format.

    >>> buffer = io.BytesIO()
    >>> Image.new("LA", (3, 2), (0, 0)).save(buffer, "png")
    >>> decode_image(buffer.getvalue(), "x.png").getpixel((0, 0))
    (255, 255, 255)
    """
    return _decode(data, name, draft=draft, max_pixels=max_pixels)[0]


def _decode(data: bytes, name: str, *, draft: int | None, max_pixels: int) -> tuple[Image.Image, str, int]:
    """Return the image, its format, and its shortest side in the file."""
    if not data:
        raise NearfarError(f"{name}: is empty (0 bytes)")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_formats())
        kind, side = str(image.format), min(image.size)
        if draft:
            image.draft(None, (draft, draft))
        width, height = image.size
        if width * height > max_pixels:
            raise NearfarError(
                f"{name}: {width} x {height} exceeds the limit of {max_pixels:,} pixels: make it smaller"
            )
        image.load()
        return _rgb(_upright(image), name), kind, side
    except NearfarError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise NearfarError(f"{name}: exceeds the pixel limit of Pillow ({error}): make it smaller") from error
    except UnidentifiedImageError:
        raise NearfarError(f"{name}: is not a readable image ({', '.join(FORMATS)})") from None
    except Exception as error:  # plugins of Pillow raise OSError, SyntaxError, ValueError, struct.error and others
        raise NearfarError(f"{name}: is damaged or truncated ({type(error).__name__}: {error})") from error


@lru_cache(maxsize=1)
def _formats() -> list[str]:
    # Pillow does not know a format, such as WebP, if it was built without the library
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # an image with a damaged EXIF block is still readable
        return image


def _rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "RGB":
        return image
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(image), name)).convert("RGB")
    if image.has_transparency_data:
        solid = image.convert("RGBA")
        white = Image.new("RGBA", solid.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, solid).convert("RGB")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Scale 16-bit integers (65535 -> 255) and floats in 0..1 or 0..65535 to 8 bits."""
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        return (values * 255 + 0.5).astype(np.uint8)
    if not (low >= 0 and high <= 65535):  # also true for NaN
        raise NearfarError(f"{name}: has values from {low:g} to {high:g}: save it with 8 or 16 bits per channel")
    return (values / 257 + 0.5).astype(np.uint8)


class ImageReader:
    """Read the image files of a manifest from a folder or a tar archive. Workers and threads can share a reader."""

    def __init__(self, manifest: Manifest, *, max_pixels: int = MAX_PIXELS) -> None:
        if manifest.paths is None or manifest.root is None:
            raise ValueError(f"manifest must be a manifest of files, got {manifest!r}")
        self.paths = manifest.paths
        self.root = manifest.root
        self.max_pixels = max_pixels
        self.archive: Archive | None = None
        if is_archive(self.root):
            self.archive = load_archive(self.root, allow_partial=True)

    def __len__(self) -> int:
        return len(self.paths)

    def location(self, row: int) -> str:
        """Return the full path of a file, for messages."""
        return str(self.root / self.paths[row])

    def read_bytes(self, row: int) -> bytes:
        """Read the bytes of a file."""
        if self.archive is not None:
            return self.archive.read(self.paths[row])
        return read_regular(self.root / self.paths[row])

    def read_image(self, row: int, *, draft: int | None = None) -> Image.Image:
        """Read and decode an image, see `decode_image`."""
        return decode_image(self.read_bytes(row), self.location(row), draft=draft, max_pixels=self.max_pixels)


@dataclass
class ScanResult:
    """Result of `scan_images`.

    Attributes:
        files: Number of files.
        broken: Maps the row of each file that cannot be decoded to the reason, one line with the path.
        formats: Number of files of each format.
        shortest_sides: Shortest side of each image in pixels.
        same_file_two_labels: Pairs of rows of identical files with different labels.
        same_file_train_and_test: Pairs of rows of identical files in train and in test.
    """

    files: int
    broken: dict[int, str] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)
    shortest_sides: list[int] = field(default_factory=list)
    same_file_two_labels: list[tuple[int, int]] = field(default_factory=list)
    same_file_train_and_test: list[tuple[int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {name}" for name, count in self.formats.most_common())
        lines = [f"{self.files:,} files scanned: {len(self.broken):,} broken ({kinds or 'none readable'})"]
        if self.shortest_sides:
            low, middle, high = np.percentile(self.shortest_sides, [0, 50, 100])
            lines.append(f"  shortest side {low:.0f} to {high:.0f} pixels, median {middle:.0f}")
        for pairs, what in (
            (self.same_file_two_labels, "identical files with different labels"),
            (self.same_file_train_and_test, "identical files in train and in test"),
        ):
            if pairs:
                lines.append(f"  {len(pairs):,} {what}")
        lines += [f"  {reason}" for reason in islice(self.broken.values(), SHOWN)]
        return "\n".join(lines + ([f"  and {len(self.broken) - SHOWN:,} more"] if len(self.broken) > SHOWN else []))


def scan_images(
    manifest: Manifest,
    *,
    workers: int = 1,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int], object] | None = None,
) -> ScanResult:
    """Decode every file to find broken files, and identical files with different labels or splits.

    JPEGs are decoded at an eighth of their size, which still reads all of their bytes. `drop_rows` removes broken files
    from the manifest.

    Args:
        manifest: A manifest of files.
        workers: Number of threads.
        max_pixels: Largest image to decode.
        progress: Called with the number of files done.
    """
    reader = ImageReader(manifest, max_pixels=max_pixels)
    result = ScanResult(len(manifest))
    first: dict[bytes, int] = {}

    def check(row: int) -> tuple[bytes, str, int] | NearfarError:
        try:
            data = reader.read_bytes(row)
            _, kind, side = _decode(data, reader.location(row), draft=SCAN_SIDE, max_pixels=max_pixels)
        except NearfarError as error:
            return error
        return hashlib.sha256(data).digest(), kind, side

    for row, checked in enumerate(map_in_order(check, range(len(manifest)), workers)):
        if isinstance(checked, NearfarError):
            result.broken[row] = str(checked)
        else:
            digest, kind, side = checked
            result.formats[kind] += 1
            result.shortest_sides.append(side)
            other = first.setdefault(digest, row)
            if manifest.labels[other] != manifest.labels[row]:
                result.same_file_two_labels.append((other, row))
            if {manifest.split[other], manifest.split[row]} == {"train", "test"}:
                result.same_file_train_and_test.append((other, row))
        if progress is not None:
            progress(row + 1)
    return result


def drop_rows(manifest: Manifest, rows: Iterable[int]) -> Manifest:
    """Return the manifest without these rows, such as the broken ones of a scan, and with a note of their number."""
    dropped = sorted(set(rows))
    if not dropped:
        return manifest
    keep = np.ones(len(manifest), dtype=np.bool_)
    keep[dropped] = False
    remaining = manifest.subset(keep)
    return remaining.with_labels(
        remaining.labels, f"{len(dropped):,} samples left out, first {manifest.name(dropped[0])}"
    )


def map_in_order(work: Callable[[int], T], rows: Iterable[int], workers: int) -> Iterator[T]:
    """Map on threads and yield the results in order, at most 8 per worker ahead. Pillow decodes without the GIL."""
    if workers <= 1:
        yield from map(work, rows)
        return
    with ThreadPoolExecutor(workers) as pool:
        source = iter(rows)
        waiting = [pool.submit(work, row) for row in islice(source, 8 * workers)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(pool.submit(work, row) for row in islice(source, 1))
