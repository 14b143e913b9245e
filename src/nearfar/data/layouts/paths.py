"""Class and split of an image from its path, by one rule for folders and archives."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from nearfar.data.manifest import Manifest, number_labels
from nearfar.errors import NearfarError

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")
)
SPLIT_FOLDERS = {"train": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}


def is_image(name: str) -> bool:
    """Return whether a name has an image suffix and is not hidden (file managers leave `._cat.jpg` next to `cat.jpg`).

    >>> is_image("a/cat.JPG"), is_image("a/._cat.jpg"), is_image("a/readme.txt")
    (True, False, False)
    """
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def manifest_from_paths(paths: Sequence[str], *, root: Path, source: str, notes: Iterable[str] = ()) -> Manifest:
    """Create a manifest from paths `class/.../image`, or `SPLIT/class/.../image` with train and test or val.

    Outer folders that contain all images (`images/`) are ignored. Without split folders the split is by class order:
    the first half of the classes is for training, the second half for testing.
    """
    if not paths:
        raise NearfarError(
            f"{source}: contains no images ({', '.join(sorted(SUFFIXES))}): expected one folder per class"
        )
    paths = sorted(paths)
    parts = [path.split("/") for path in paths]
    skip = _common_folders(parts)
    loose = [path for path, part in zip(paths, parts, strict=True) if len(part) < skip + 2]
    tops = {part[skip] for part in parts}
    by_split = "train" in tops and len(tops) > 1 and tops <= SPLIT_FOLDERS.keys()
    if by_split:
        loose = [path for path, part in zip(paths, parts, strict=True) if len(part) < skip + 3]
    if loose:
        folder = "its split folder" if by_split else "the top folder"
        raise NearfarError(
            f"{source}: {loose[0]} ({len(loose)} such images) is directly in {folder}: move it to a class folder"
        )
    depth = skip + by_split
    labels, classes = number_labels([part[depth] for part in parts])
    split = [SPLIT_FOLDERS[part[skip]] for part in parts] if by_split else ["train"] * len(paths)
    manifest = Manifest(
        labels=labels,
        classes=classes,
        split=np.asarray(split),
        paths=tuple(paths),
        root=root,
        source=source,
        notes=tuple(notes),
    )
    return manifest if by_split else manifest.split_by_class_order()


def _common_folders(parts: list[list[str]]) -> int:
    """Return the number of leading folders that all paths share and that contain only folders."""
    depth = 0
    while len({part[depth] for part in parts}) == 1 and all(len(part) > depth + 2 for part in parts):
        depth += 1
    return depth


@dataclass
class FolderScan:
    """Images of a folder tree as relative paths with forward slashes, and counts of what was skipped."""

    images: list[str]
    others: Counter[str]

    @property
    def notes(self) -> list[str]:
        """One phrase for each kind of file that is not in the manifest."""
        return [f"{count:,} {what} skipped" for what, count in sorted(self.others.items())]


def scan_folder(root: Path) -> FolderScan:
    """Find every image below a folder. Links to folders are followed unless they form a loop."""
    scan = FolderScan([], Counter())
    for relative, entry in _walk(root, "", frozenset()):
        if entry is None:
            scan.others["loops of linked folders"] += 1
        elif not is_image(relative):
            if not entry.name.startswith("."):
                scan.others["files that are not images"] += 1
        elif entry.is_file():
            scan.images.append(relative)
        else:
            scan.others["image names that are broken links, pipes or devices"] += 1
    return scan


def _walk(
    folder: Path, prefix: str, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    try:
        here = os.stat(folder)
        identity = (here.st_dev, here.st_ino)
        if identity in above:
            yield prefix, None
            return
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        raise NearfarError(f"{folder}: cannot be read ({error.strerror}): check the folder's permissions") from error
    for entry in entries:
        if entry.is_dir():
            if not entry.name.startswith("."):
                yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", above | {identity})
        else:
            yield prefix + entry.name, entry


def find_missing(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the paths that are not regular files below root. Each folder is listed once, and no file is opened."""
    listed: dict[str, frozenset[str]] = {}
    absent = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in listed:
            # joining an absolute path gives the path itself
            listed[folder] = _file_names(root / (f"{folder}/" if path.startswith("/") else folder))
        if name not in listed[folder]:
            absent.append(path)
    return absent


def _file_names(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as listing:
            return frozenset(entry.name for entry in listing if entry.is_file())
    except (OSError, ValueError):  # ValueError: not a possible file name
        return frozenset()


def read_regular(path: Path) -> bytes:
    """Read a regular file. A pipe or a device, which could block forever, is an error."""
    try:
        # O_NONBLOCK: opening a pipe without a writer would wait; for regular files it has no effect
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise NearfarError(f"{path}: is not a regular file")
            return file.read()
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from error
    except ValueError as error:
        raise NearfarError(f"{path}: is not a possible file name ({error})") from error
