"""Decode image files to RGB images in the right orientation, and scan a dataset for files that cannot be decoded."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nearfar.data.items import as_image, encode_item
from nearfar.data.layouts.archive import Archive, is_archive, load_archive
from nearfar.data.layouts.paths import read_regular
from nearfar.data.manifest import Manifest
from nearfar.data.near_duplicates import Hashes, describe_near_duplicates, hash_image
from nearfar.errors import NearfarError
from nearfar.formatting import counted

# Supported formats. Pillow decodes all of them itself. It would start Ghostscript for EPS, which is why EPS is refused.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
MAX_PIXELS = 1 << 26
SCAN_SIDE = 32
SHOWN = 20

T = TypeVar("T")


def decode_image(data: bytes, name: str, *, draft: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode the bytes of an image file to an RGB image.

    The EXIF orientation is applied. CMYK, gray, palette and 16-bit images are converted to RGB, transparent pixels
    become white, and only the first frame of an animation is used.

    Args:
        data: The bytes of the file.
        name: Name of the file, for error messages.
        draft: Required length of the shortest side in pixels. A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if its
            shortest side is then still long enough. Other formats are always decoded at full size.
        max_pixels: Largest number of pixels to decode. The limit protects against small files that need gigabytes of
            memory.

    Raises:
        NearfarError: If the file is empty, truncated, damaged or too large, or if its format is not supported.

    >>> buffer = io.BytesIO()
    >>> Image.new("LA", (3, 2), (0, 0)).save(buffer, "png")
    >>> decode_image(buffer.getvalue(), "x.png").getpixel((0, 0))
    (255, 255, 255)
    """
    return _decode(data, name, draft=draft, max_pixels=max_pixels)[0]


def _decode(data: bytes, name: str, *, draft: int | None, max_pixels: int) -> tuple[Image.Image, str, int]:
    """Return the image, its format, and the shortest side of the image as stored in the file."""
    if not data:
        raise NearfarError(f"{name} is empty (0 bytes)")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=_formats())
        kind, side = str(image.format), min(image.size)
        if draft:
            image.draft(None, (draft, draft))
        width, height = image.size
        if width * height > max_pixels:
            raise NearfarError(
                f"{name} has {width} x {height} pixels, more than the limit of {max_pixels:,}: resize the image"
            )
        image.load()
        return _rgb(_upright(image), name), kind, side
    except NearfarError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise NearfarError(f"{name} exceeds the pixel limit of Pillow ({error}): resize the image") from error
    except UnidentifiedImageError:
        raise NearfarError(f"{name} is not a readable image in a supported format ({', '.join(FORMATS)})") from None
    except Exception as error:  # decoders of Pillow raise OSError, SyntaxError, ValueError, struct.error and others
        raise NearfarError(f"{name} is damaged or truncated ({type(error).__name__}: {error})") from error


@lru_cache(maxsize=1)
def _formats() -> list[str]:
    # a format such as WebP is not registered if Pillow was built without its library
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
    """Convert pixel values to uint8. The input range is 0..1 if all values are floats in 0..1, otherwise 0..65535."""
    low, high = float(values.min()), float(values.max())
    if values.dtype.kind == "f" and low >= 0 and high <= 1:
        return (values * 255 + 0.5).astype(np.uint8)
    if not (low >= 0 and high <= 65535):  # also true for NaN
        raise NearfarError(f"{name} has values from {low:g} to {high:g}: save the image with 8 or 16 bits per channel")
    return (values / 257 + 0.5).astype(np.uint8)


class ImageReader:
    """Reader for the images of a manifest, which are files in a folder or an archive, or come from `manifest.items`.

    Threads and processes can share a reader.
    """

    def __init__(self, manifest: Manifest, *, max_pixels: int = MAX_PIXELS) -> None:
        if manifest.items is None and (manifest.paths is None or manifest.root is None):
            raise ValueError(f"manifest must contain image files (paths and root), got {manifest!r}")
        self.items = manifest.items
        self.paths = manifest.paths or tuple(manifest.name(row) for row in range(len(manifest)))
        self.root = manifest.root or Path(manifest.source)
        self.max_pixels = max_pixels
        self.archive: Archive | None = None
        if self.items is None and is_archive(self.root):
            self.archive = load_archive(self.root, allow_partial=True)

    def __len__(self) -> int:
        return len(self.paths)

    def location(self, row: int) -> str:
        """Return the full path of the image in a row, for error messages."""
        return str(self.root / self.paths[row])

    def read_bytes(self, row: int) -> bytes:
        """Return the image in a row as the bytes of an image file."""
        if self.items is not None:
            return encode_item(self._item(row))
        if self.archive is not None:
            return self.archive.read(self.paths[row])
        return read_regular(self.root / self.paths[row])

    def _item(self, row: int) -> Any:
        assert self.items is not None
        try:
            return self.items[row]
        except NearfarError:
            raise
        except Exception as error:  # the dataset is the user's code, which can raise anything
            raise NearfarError(f"{self.location(row)} cannot be read ({type(error).__name__}: {error})") from error

    def read_image(self, row: int, *, draft: int | None = None) -> Image.Image:
        """Read and decode the image in a row (see `decode_image`)."""
        if self.items is not None and not isinstance(item := self._item(row), bytes):
            return _rgb(_upright(as_image(item)), self.location(row))
        return decode_image(self.read_bytes(row), self.location(row), draft=draft, max_pixels=self.max_pixels)


@dataclass
class ScanResult:
    """Result of `scan_images`.

    Attributes:
        files: Number of files.
        broken: Dict that maps each row whose file cannot be decoded to a one-line error message with the path.
        formats: Number of readable files of each format, such as "JPEG".
        shortest_sides: Shortest side of each readable image in pixels.
        same_file_two_labels: Pairs of rows with identical files but different labels. Each file is compared only with
            the first identical file.
        same_file_train_and_test: Pairs of rows with identical files, one in train and one in test, compared in the same
            way.
        hashes: Hash of each image [N] (see `nearfar.data.near_duplicates`), 0 for broken images.
        content: SHA-256 of the concatenated SHA-256 digests of all files. A broken file counts as a digest of zeros.
        near_duplicates: A sentence that says how many test images are near-duplicates of another image. It is empty if
            fewer than 1% of the test images are near-duplicates.
    """

    files: int
    broken: dict[int, str] = field(default_factory=dict)
    formats: Counter[str] = field(default_factory=Counter)
    shortest_sides: list[int] = field(default_factory=list)
    same_file_two_labels: list[tuple[int, int]] = field(default_factory=list)
    same_file_train_and_test: list[tuple[int, int]] = field(default_factory=list)
    hashes: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    content: str = ""
    near_duplicates: str = ""

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {name}" for name, count in self.formats.most_common())
        lines = [f"{counted(self.files, 'file')} scanned: {kinds or 'none readable'}, {len(self.broken):,} broken"]
        if self.shortest_sides:
            low, middle, high = np.percentile(self.shortest_sides, [0, 50, 100])
            lines.append(f"  shortest side {low:.0f} to {high:.0f} pixels, median {middle:.0f}")
        for pairs, what in (
            (self.same_file_two_labels, "identical files with different labels"),
            (self.same_file_train_and_test, "identical files in train and in test"),
        ):
            if pairs:
                lines.append(f"  {counted(len(pairs), 'pair')} of {what}")
        lines += [f"  {self.near_duplicates}"] if self.near_duplicates else []
        lines += [f"  {reason}" for reason in islice(self.broken.values(), SHOWN)]
        lines += [f"  and {len(self.broken) - SHOWN:,} more"] if len(self.broken) > SHOWN else []
        lines += ["  replace the broken files, or leave them out with --skip-broken"] if self.broken else []
        return "\n".join(lines)


def scan_images(
    manifest: Manifest,
    *,
    workers: int = 1,
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[int], object] | None = None,
) -> ScanResult:
    """Decode every file, and return a `ScanResult` with the broken, identical and nearly identical files.

    JPEGs are decoded at a reduced size (down to 1/8 of each side). This is faster but still reads every byte of the
    file. `drop_rows` removes broken files from the manifest.

    Args:
        manifest: A manifest of image files.
        workers: Number of threads.
        max_pixels: Images that are decoded to more pixels than this count as broken.
        progress: Function that is called with the number of finished files.
    """
    reader = ImageReader(manifest, max_pixels=max_pixels)
    result = ScanResult(len(manifest), hashes=np.zeros(len(manifest), np.uint64))
    first: dict[bytes, int] = {}
    content = hashlib.sha256()

    def check(row: int) -> tuple[bytes, str, int, int] | NearfarError:
        try:
            data = reader.read_bytes(row)
            image, kind, side = _decode(data, reader.location(row), draft=SCAN_SIDE, max_pixels=max_pixels)
        except NearfarError as error:
            return error
        return hashlib.sha256(data).digest(), kind, side, hash_image(image)

    for row, checked in enumerate(map_in_order(check, range(len(manifest)), workers)):
        if isinstance(checked, NearfarError):
            result.broken[row] = str(checked)
            content.update(bytes(32))
        else:
            digest, kind, side, result.hashes[row] = checked
            content.update(digest)
            result.formats[kind] += 1
            result.shortest_sides.append(side)
            other = first.setdefault(digest, row)
            if manifest.labels[other] != manifest.labels[row]:
                result.same_file_two_labels.append((other, row))
            if {manifest.split[other], manifest.split[row]} == {"train", "test"}:
                result.same_file_train_and_test.append((other, row))
        if progress is not None:
            progress(row + 1)
    result.content = content.hexdigest()
    result.near_duplicates = describe_near_duplicates(result.hashes, manifest.split)
    return result


def drop_rows(manifest: Manifest, rows: Iterable[int]) -> Manifest:
    """Return the manifest without `rows`, such as the broken files of a scan. A note says how many were left out."""
    dropped = sorted(set(rows))
    if not dropped:
        return manifest
    keep = np.ones(len(manifest), dtype=np.bool_)
    keep[dropped] = False
    remaining = manifest.subset(keep)
    return remaining.with_labels(
        remaining.labels, f"{counted(len(dropped), 'sample')} left out, the first: {manifest.name(dropped[0])}"
    )


def map_in_order(work: Callable[[int], T], rows: Iterable[int], workers: int) -> Iterator[T]:
    """Call `work` for each row on several threads and yield the results in order.

    At most 8 results per worker are computed in advance. Threads suffice, because Pillow releases the GIL while it
    decodes.
    """
    if workers <= 1:
        yield from map(work, rows)
        return
    with ThreadPoolExecutor(workers) as pool:
        source = iter(rows)
        waiting = [pool.submit(work, row) for row in islice(source, 8 * workers)]
        while waiting:
            yield waiting.pop(0).result()
            waiting.extend(pool.submit(work, row) for row in islice(source, 1))
