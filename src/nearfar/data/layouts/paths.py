"""Derive the class and split of an image from its path, in the same way for folders and archives."""

from __future__ import annotations

import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from nearfar.data.manifest import Manifest, number_labels
from nearfar.errors import NearfarError
from nearfar.formatting import counted

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")
)
SPLIT_FOLDERS = {"train": "train", "test": "test", "val": "val", "valid": "val", "validation": "val"}

NOT_IMAGES = ("file that is not an image", "files that are not images")
# kinds of files and links that a scan skips, with their description in singular and plural
SKIPPED = {
    "no regular file": (
        "image file that is a broken link, pipe or device",
        "image files that are broken links, pipes or devices",
    ),
    "other file": NOT_IMAGES,
    "repeated folder": ("link to a folder that was already read", "links to folders that were already read"),
}


def is_image(name: str) -> bool:
    """Return whether a file name has an image suffix and is not hidden (macOS creates `._cat.jpg` next to `cat.jpg`).

    >>> is_image("a/cat.JPG"), is_image("a/._cat.jpg"), is_image("a/readme.txt")
    (True, False, False)
    """
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def manifest_from_paths(paths: Sequence[str], *, root: Path, source: str, notes: Iterable[str] = ()) -> Manifest:
    """Create a manifest from image paths of the form `class/.../image` or `SPLIT/class/.../image`.

    SPLIT is train, val (or valid or validation) or test. Folders with these names are splits only if there is a folder
    train, at least one other split folder, and no folder with another name next to them. Outer folders that contain all
    images, such as `images/`, are ignored. Without split folders, the first half of the classes is for training and the
    second half for testing.
    """
    if not paths:
        raise NearfarError(
            f"{source} contains no images ({', '.join(sorted(SUFFIXES))}): expected one folder per class"
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
            f"{source}: {loose[0]} is directly in {folder} ({counted(len(loose), 'such image')}): "
            "move it to a class folder"
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
        notes=(*notes, *_note_subfolders(parts, depth)),
    )
    return manifest if by_split else manifest.split_by_class_order()


def _note_subfolders(parts: list[list[str]], depth: int) -> list[str]:
    """Return a note if a class folder has several subfolders with images, because these may be the classes."""
    inner = {tuple(part[depth : depth + 2]) for part in parts if len(part) > depth + 2}
    # sorted, so that the note does not depend on the order of a set
    name, count = Counter(top for top, _ in sorted(inner)).most_common(1)[0] if inner else ("", 0)
    if count < 2:
        return []
    return [
        f"class {name!r} has {count:,} subfolders with images: if these are the classes, open the folder {name!r} "
        "instead of its parent"
    ]


def _common_folders(parts: list[list[str]]) -> int:
    """Return the number of leading folders that all paths have in common and that contain no images directly."""
    depth = 0
    while len({part[depth] for part in parts}) == 1 and all(len(part) > depth + 2 for part in parts):
        depth += 1
    return depth


@dataclass
class FolderScan:
    """The images in a folder tree, and the files and links that were skipped.

    Attributes:
        images: Paths of the images relative to the root, with forward slashes.
        others: Number of skipped files and links of each kind (the keys of `SKIPPED`).
        empty: Folders without images next to folders with images, such as an empty class.
    """

    images: list[str]
    others: Counter[str]
    empty: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Notes for the manifest: the number of skipped files of each kind, and folders without images."""
        first = f"{counted(len(self.empty), 'folder')} without images, the first: {self.empty[0]}" if self.empty else ""
        return [first] * bool(first) + [
            f"skipped {counted(count, *SKIPPED[kind])}" for kind, count in sorted(self.others.items())
        ]


def scan_folder(root: Path) -> FolderScan:
    """Find every image below a folder. Symbolic links to folders are followed, but no folder is read twice.

    Links are followed after all real folders have been read. Images of a folder inside `root` therefore get the class
    of this folder, not that of a link to it.
    """
    scan = FolderScan([], Counter())
    folders = list[str]()
    for relative, entry in _walk(root):
        if isinstance(entry, _Folder):
            folders.append(relative)
        elif entry is None:
            scan.others["repeated folder"] += 1
        elif not is_image(relative):
            if not entry.name.startswith("."):
                scan.others["other file"] += 1
        elif _is_kind(entry.is_file):
            scan.images.append(relative)
        else:
            scan.others["no regular file"] += 1
    used = {""}
    for image in scan.images:
        folder = image.rpartition("/")[0]
        while folder not in used:
            used.add(folder)
            folder = folder.rpartition("/")[0]
    scan.empty = sorted(folder for folder in folders if folder not in used and folder.rpartition("/")[0] in used)
    return scan


class _Folder:
    """Marks a folder in the result of `_walk`."""


def _walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str] | _Folder | None]]:
    """Yield the path and the entry of every file and folder below root, except in hidden folders.

    The entry of a folder is a `_Folder`, or None if the folder was already read, for example through a link.
    """
    # keep folders in lists instead of recursing, because they can be nested deeper than the recursion limit
    folders, links = [(root, "")], deque[tuple[Path, str]]()
    visited: set[tuple[int, int]] = set()
    while folders or links:
        folder, prefix = folders.pop() if folders else links.popleft()
        try:
            here = os.stat(folder)
            if (here.st_dev, here.st_ino) in visited:
                yield prefix, None
                continue
            visited.add((here.st_dev, here.st_ino))
            if prefix:
                yield prefix.removesuffix("/"), _Folder()
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            raise NearfarError(f"{folder} cannot be read ({error.strerror}): check its permissions") from error
        for entry in entries:
            if not _is_kind(entry.is_dir):
                yield prefix + entry.name, entry
            elif not entry.name.startswith("."):
                waiting = links if entry.is_symlink() else folders
                waiting.append((folder / entry.name, f"{prefix}{entry.name}/"))


def _is_kind(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError:  # for example a symbolic link to itself
        return False


def find_missing(root: Path, paths: Iterable[str]) -> list[str]:
    """Return the paths that are not regular files below root. Each folder is listed once, and no file is opened."""
    listed: dict[str, frozenset[str]] = {}
    absent = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in listed:
            # If the path is absolute, root / folder is the absolute folder. The added slash is needed for a file in /,
            # whose folder would otherwise be an empty string.
            listed[folder] = _file_names(root / (f"{folder}/" if path.startswith("/") else folder))
        if name not in listed[folder]:
            absent.append(path)
    return absent


def _file_names(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as listing:
            return frozenset(entry.name for entry in listing if entry.is_file())
    except (OSError, ValueError):  # ValueError is raised for invalid names, for example with a null byte
        return frozenset()


def read_regular(path: Path) -> bytes:
    """Read a regular file. Pipes and devices raise an error, because reading them could block forever."""
    try:
        # without O_NONBLOCK, opening a pipe that has no writer would block; regular files are not affected
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise NearfarError(
                    f"{path} is a pipe, a device or a folder, not a file: save its content to a file first"
                )
            return file.read()
    except OSError as error:
        raise NearfarError(f"{path} cannot be read ({error.strerror}): check the path and its permissions") from error
    except ValueError as error:
        raise NearfarError(f"{path} is not a valid file name ({error})") from error
