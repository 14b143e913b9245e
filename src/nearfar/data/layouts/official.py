"""The published counts of the four benchmarks, and the check of a copy against them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError


@dataclass(frozen=True)
class Counts:
    """What a complete copy has. `query` and `gallery` are parts of test where the benchmark has them."""

    name: str
    train: int
    test: int
    train_classes: int
    test_classes: int
    query: int = 0
    gallery: int = 0

    @property
    def images(self) -> int:
        """All pictures of the benchmark."""
        return self.train + self.test


CUB = Counts("CUB-200-2011", train=5_864, test=5_924, train_classes=100, test_classes=100)
CARS = Counts("Cars-196", train=8_054, test=8_131, train_classes=98, test_classes=98)
SOP = Counts("Stanford Online Products", train=59_551, test=60_502, train_classes=11_318, test_classes=11_316)
IN_SHOP = Counts(
    "In-Shop", train=25_882, test=26_830, train_classes=3_997, test_classes=3_985, query=14_218, gallery=12_612
)


def check_copy(
    manifest: Manifest, counts: Counts, *, absent: list[str], table: str, root: Path, allow_partial: bool
) -> Manifest:
    """The manifest without its absent files, if the copy is complete or `allow_partial`; otherwise an error.

    `absent` are listed pictures that are not on the disk, `table` is the file that lists them. The error names the
    first absent file, or the first count that is off.
    """
    problems = []
    if absent:
        some = f"{root / absent[0]} is missing ({len(absent):,} of the {len(manifest):,} pictures in {table} are)"
        problems.append(some)
    off = differences(manifest, counts)
    if off:
        problems.append(f"{table} has {'; '.join(off)}")
    if not problems:
        return manifest
    if not allow_partial:
        raise NearfarError(
            f"{root}: not a complete copy of {counts.name}: {'; '.join(problems)}: get it again, or allow a partial one"
        )
    notes = (*manifest.notes, *(f"partial copy of {counts.name}: {problem}" for problem in problems))
    if absent:
        gone = frozenset(absent)
        manifest = manifest.subset(np.array([path not in gone for path in manifest.paths or ()]))
    return replace(manifest, notes=notes)


def differences(manifest: Manifest, counts: Counts) -> list[str]:
    """Each count that is not the published one, in words."""
    train, test = manifest.rows("train"), manifest.rows("test")
    found: Iterable[tuple[str, int, int]] = [
        ("train pictures", len(train), counts.train),
        ("test pictures", len(test), counts.test),
        ("train classes", len(np.unique(manifest.labels[train])), counts.train_classes),
        ("test classes", len(np.unique(manifest.labels[test])), counts.test_classes),
    ]
    if manifest.role is not None and counts.query:
        role = manifest.role
        found = [
            *found,
            ("queries", int((role == "query").sum()), counts.query),
            ("gallery pictures", int((role == "gallery").sum()), counts.gallery),
        ]
    return [f"{have:,} {what} instead of {want:,}" for what, have, want in found if have != want]


def read_table(path: Path, columns: int, *, skip: int = 0, rest: bool = False) -> list[list[str]]:
    """Rows of a file with space-separated columns, after `skip` lines; with `rest` the last column keeps its spaces.

    Empty lines are passed over; a row with another number of columns is an error with its line number.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NearfarError(f"{path}: cannot be read ({error}): get the data set again") from error
    rows = []
    for number, line in enumerate(lines[skip:], start=skip + 1):
        cells = line.split(maxsplit=columns - 1) if rest else line.split()
        if len(cells) == columns:
            rows.append([cell.strip() for cell in cells])
        elif cells:
            raise NearfarError(f"{path}, line {number}: {columns} columns expected, got {len(cells)}: {line[:60]!r}")
    return rows
