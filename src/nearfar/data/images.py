"""From bytes to an upright RGB picture, whatever the file holds; and a scan that finds the files that hold none."""

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

# Formats that Pillow decodes by itself. Others are refused before their code runs (EPS would start Ghostscript).
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
MAX_PIXELS = 1 << 26
SCAN_SIDE = 32
SHOWN = 20

T = TypeVar("T")


def decode_image(data: bytes, name: str, *, draft: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """An upright RGB picture, or a NearfarError that starts with `name`.

    `draft`: the shortest side that will be needed; a JPEG is then decoded at 1/2, 1/4 or 1/8 of its size where that
    leaves at least this. EXIF orientation is applied. CMYK, gray, palette and 16-bit become RGB; what is transparent
    becomes white. Of an animation the first frame counts. More than `max_pixels` to decode is an error (a small file
    can ask for gigabytes), so is a file that is empty, cut off or damaged.

    >>> buffer = io.BytesIO()
    >>> Image.new("LA", (3, 2), (0, 0)).save(buffer, "png")
    >>> decode_image(buffer.getvalue(), "x.png").getpixel((0, 0))
    (255, 255, 255)
    """
    return _open(data, name, draft=draft, max_pixels=max_pixels)[0]


def _open(data: bytes, name: str, *, draft: int | None, max_pixels: int) -> tuple[Image.Image, str, int]:
    """The picture, its format, and its shortest side in the file."""
    if not data:
        raise NearfarError(f"{name}: is empty (0 bytes)")
    try:
        picture: Image.Image = Image.open(io.BytesIO(data), formats=_formats())
        kind, side = str(picture.format), min(picture.size)
        if draft:
            picture.draft(None, (draft, draft))
        width, height = picture.size
        if width * height > max_pixels:
            raise NearfarError(
                f"{name}: {width} x {height} is above the limit of {max_pixels:,} pixels: make it smaller"
            )
        picture.load()
        return _rgb(_upright(picture), name), kind, side
    except NearfarError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise NearfarError(f"{name}: is above Pillow's limit of pixels ({error}): make it smaller") from error
    except UnidentifiedImageError:
        raise NearfarError(f"{name}: is not a picture that can be read ({', '.join(FORMATS)})") from None
    except Exception as error:  # Pillow's plugins raise OSError, SyntaxError, ValueError, struct.error and others
        raise NearfarError(f"{name}: is damaged or cut off ({type(error).__name__}: {error})") from error


@lru_cache(maxsize=1)
def _formats() -> list[str]:
    # a Pillow without one of the libraries (WebP, say) does not know that format at all
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # a damaged EXIF block does not make the picture unreadable
        return picture


def _rgb(picture: Image.Image, name: str) -> Image.Image:
    if picture.mode == "RGB":
        return picture
    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(picture), name)).convert("RGB")
    if picture.has_transparency_data:
        solid = picture.convert("RGBA")
        white = Image.new("RGBA", solid.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, solid).convert("RGB")
    return picture.convert("RGB")


def _eight_bits(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """16-bit integers to their high byte (65535 -> 255); floats and larger integers must be in 0..1 or 0..65535."""
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        return (values * 255 + 0.5).astype(np.uint8)
    if not (low >= 0 and high <= 65535):  # also false for NaN
        raise NearfarError(f"{name}: has values from {low:g} to {high:g}: save it with 8 or 16 bits a channel")
    return (values / 257 + 0.5).astype(np.uint8)


class ImageReader:
    """Bytes and pictures of a manifest's files, from a folder or out of a tar in place; safe in workers and threads."""

    def __init__(self, manifest: Manifest, *, max_pixels: int = MAX_PIXELS) -> None:
        if manifest.paths is None or manifest.root is None:
            raise ValueError(f"a manifest of files is needed, got {manifest!r}")
        self.paths = manifest.paths
        self.root = manifest.root
        self.max_pixels = max_pixels
        self.archive: Archive | None = None
        if is_archive(self.root):
            self.archive = load_archive(self.root, allow_partial=True)

    def __len__(self) -> int:
        return len(self.paths)

    def location(self, row: int) -> str:
        """The full name of a file for messages."""
        return str(self.root / self.paths[row])

    def read_bytes(self, row: int) -> bytes:
        """The bytes of a file."""
        if self.archive is not None:
            return self.archive.read(self.paths[row])
        return read_regular(self.root / self.paths[row])

    def read_image(self, row: int, *, draft: int | None = None) -> Image.Image:
        """The decoded picture, see `decode_image`."""
        return decode_image(self.read_bytes(row), self.location(row), draft=draft, max_pixels=self.max_pixels)


@dataclass
class ScanResult:
    """What a look at every file found. `broken` maps a row to the reason, one line with the path."""

    files: int
    broken: dict[int, str] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)
    shortest_sides: list[int] = field(default_factory=list)
    same_file_two_labels: list[tuple[int, int]] = field(default_factory=list)
    same_file_train_and_test: list[tuple[int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {name}" for name, count in self.formats.most_common())
        lines = [f"{self.files:,} files looked at: {len(self.broken):,} broken ({kinds or 'none readable'})"]
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
    """Reads and decodes every file: which are broken, which are the same file under two labels or in two splits.

    JPEGs are decoded at an eighth of their size, which still reads all of their bytes. `progress` gets the number of
    files done. Leave the broken ones out with `manifest.subset(rows)`, see `drop_rows`.
    """
    reader = ImageReader(manifest, max_pixels=max_pixels)
    found = ScanResult(len(manifest))
    first: dict[bytes, int] = {}

    def look(row: int) -> tuple[bytes, str, int] | NearfarError:
        try:
            data = reader.read_bytes(row)
            _, kind, side = _open(data, reader.location(row), draft=SCAN_SIDE, max_pixels=max_pixels)
        except NearfarError as error:
            return error
        return hashlib.sha256(data).digest(), kind, side

    for row, seen in enumerate(ordered_map(look, range(len(manifest)), workers)):
        if isinstance(seen, NearfarError):
            found.broken[row] = str(seen)
        else:
            digest, kind, side = seen
            found.formats[kind] += 1
            found.shortest_sides.append(side)
            other = first.setdefault(digest, row)
            if manifest.labels[other] != manifest.labels[row]:
                found.same_file_two_labels.append((other, row))
            if {manifest.split[other], manifest.split[row]} == {"train", "test"}:
                found.same_file_train_and_test.append((other, row))
        if progress is not None:
            progress(row + 1)
    return found


def drop_rows(manifest: Manifest, rows: Iterable[int]) -> Manifest:
    """The manifest without these rows (a scan's broken ones), with a note of how many."""
    gone = sorted(set(rows))
    if not gone:
        return manifest
    keep = np.ones(len(manifest), dtype=np.bool_)
    keep[gone] = False
    kept = manifest.subset(keep)
    return kept.with_labels(kept.labels, f"{len(gone):,} samples left out, the first: {manifest.name(gone[0])}")


def ordered_map(work: Callable[[int], T], rows: Iterable[int], workers: int) -> Iterator[T]:
    """`map` on threads (Pillow decodes without the interpreter lock), in order, a bounded number ahead."""
    if workers <= 1:
        yield from map(work, rows)
        return
    with ThreadPoolExecutor(workers) as pool:
        source = iter(rows)
        waiting = [pool.submit(work, row) for row in islice(source, 8 * workers)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(pool.submit(work, row) for row in islice(source, 1))
