"""Published numbers of images and classes of CUB, Cars, SOP and In-Shop, and checks of a local copy against them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError


@dataclass(frozen=True)
class Counts:
    """Numbers of images and classes in a complete copy of a benchmark.

    `query` and `gallery` are the numbers of test images in each role, for benchmarks with separate queries.
    `first_class` and `last_class` are class names by which class folders are recognized as a copy of the benchmark.
    """

    name: str
    train: int
    test: int
    train_classes: int
    test_classes: int
    query: int = 0
    gallery: int = 0
    first_class: str = ""
    last_class: str = ""

    @property
    def images(self) -> int:
        """Number of images in the benchmark."""
        return self.train + self.test


CUB = Counts(
    "CUB-200-2011",
    train=5_864,
    test=5_924,
    train_classes=100,
    test_classes=100,
    first_class="001.Black_footed_Albatross",
    last_class="200.Common_Yellowthroat",
)
CARS = Counts(
    "Cars-196",
    train=8_054,
    test=8_131,
    train_classes=98,
    test_classes=98,
    first_class="AM General Hummer SUV 2000",
    last_class="smart fortwo Convertible 2012",
)
SOP = Counts("Stanford Online Products", train=59_551, test=60_502, train_classes=11_318, test_classes=11_316)
IN_SHOP = Counts(
    "In-Shop", train=25_882, test=26_830, train_classes=3_997, test_classes=3_985, query=14_218, gallery=12_612
)


def check_copy(
    manifest: Manifest, counts: Counts, *, absent: list[str], table: str, root: Path, allow_partial: bool
) -> Manifest:
    """Check a copy of a benchmark against the published counts, and return the manifest without missing files.

    Args:
        manifest: All images that the tables of the copy list.
        counts: The published counts.
        absent: Listed images that do not exist.
        table: Name of the file that lists the images, for error messages.
        root: Folder of the copy.
        allow_partial: If True, what is missing is described in the notes of the manifest instead of in an error.

    Raises:
        NearfarError: If the copy is incomplete and `allow_partial` is False. The message names the first missing file
            and the counts that differ.
    """
    problems = []
    if absent:
        problems.append(
            f"{root / absent[0]} is missing (missing in total: {len(absent):,} of {len(manifest):,} images in {table})"
        )
    differences = find_differences(manifest, counts)
    if differences:
        problems.append(f"{table} has {'; '.join(differences)}")
    if not problems:
        return manifest
    if not allow_partial:
        raise NearfarError(
            f"{root}: not a complete copy of {counts.name}: {'; '.join(problems)}: copy it again, or set allow_partial"
        )
    notes = (*manifest.notes, *(f"partial copy of {counts.name}: {problem}" for problem in problems))
    if absent:
        dropped = frozenset(absent)
        manifest = manifest.subset(np.array([path not in dropped for path in manifest.paths or ()]))
    return replace(manifest, notes=notes)


def note_partial_copy(manifest: Manifest) -> Manifest:
    """Return the manifest, with a note if it has the classes of CUB or Cars but a different number of images."""
    for counts in (CUB, CARS):
        is_copy = (manifest.classes[0], manifest.classes[-1]) == (counts.first_class, counts.last_class)
        if is_copy and len(manifest) != counts.images:
            note = f"looks like {counts.name}, with {len(manifest):,} of its {counts.images:,} images"
            return replace(manifest, notes=(*manifest.notes, note))
    return manifest


def find_differences(manifest: Manifest, counts: Counts) -> list[str]:
    """Return a description of each count that differs from the published one."""
    train, test = manifest.rows("train"), manifest.rows("test")
    numbers: Iterable[tuple[str, int, int]] = [
        ("train images", len(train), counts.train),
        ("test images", len(test), counts.test),
        ("train classes", len(np.unique(manifest.labels[train])), counts.train_classes),
        ("test classes", len(np.unique(manifest.labels[test])), counts.test_classes),
    ]
    if manifest.role is not None and counts.query:
        role = manifest.role
        numbers = [
            *numbers,
            ("queries", int((role == "query").sum()), counts.query),
            ("gallery images", int((role == "gallery").sum()), counts.gallery),
        ]
    return [f"{actual:,} {what} instead of {expected:,}" for what, actual, expected in numbers if actual != expected]


def read_table(path: Path, columns: int, *, skip: int = 0) -> list[list[str]]:
    """Read the rows of a file with space-separated columns.

    Empty lines are skipped. A row with a different number of columns raises an error with its line number.

    Args:
        path: The file.
        columns: Number of columns in each row.
        skip: Number of lines to skip at the start.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NearfarError(f"{path} cannot be read ({error}): download the dataset again") from error
    rows = []
    for number, line in enumerate(lines[skip:], start=skip + 1):
        cells = line.split()
        if len(cells) == columns:
            rows.append(cells)
        elif cells:
            raise NearfarError(f"{path}, line {number}: {columns} columns expected, got {len(cells)}: {line[:60]!r}")
    return rows
