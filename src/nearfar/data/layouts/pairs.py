"""CSV tables of pairs: columns `a` and `b` for image files, or `text_a` and `text_b` for texts.

The column `relation` is optional.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from nearfar.csv_files import parse_csv, read_text
from nearfar.data.annotations import Annotations
from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.tables import drop_missing
from nearfar.data.layouts.text_checks import check_texts
from nearfar.data.manifest import SPLITS, Manifest
from nearfar.data.pair_table import POSITIVE, PairTable, connect
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

FILES, TEXTS = ("a", "b"), ("text_a", "text_b")


def _is_pair_table(path: Path) -> bool:
    if not (path.name.lower().endswith((".csv", ".tsv")) and path.is_file()):
        return False
    with path.open("rb") as file:
        header = file.readline(1000).decode("utf-8-sig", "replace")
    names = {name.strip().strip('"') for name in header.split(_delimiter(path))}
    return "label" not in names and (set(FILES) <= names or set(TEXTS) <= names)


@register("pairs", recognizes=_is_pair_table, order=SPECIFIC - 1)
def open_pair_table(path: Path, *, root: Path | None = None, allow_partial: bool = False) -> Manifest:
    """Open a table of pairs.

    The columns are `a` and `b` (image files) or `text_a` and `text_b`, and optionally `relation` and `split`.
    `relation` is 1 or +1 if the two samples belong together, 0 or -1 if they do not, or a grade between 0 and 1.
    Without this column, all pairs belong together. Pairs with an empty relation are ignored, but their samples are
    kept. Samples that are connected by pairs with a grade of at least 0.5 form a group, and the groups are the classes
    of the manifest. Without a column `split`, the first half of the groups is for training and the other half for
    testing.

    Args:
        path: The table.
        root: Folder or archive (tar or zip) that the paths are relative to, by default the folder of the table.
        allow_partial: If True, listed files that do not exist are skipped and counted in a note. Otherwise they raise
            an error.
    """
    table = [row for row in parse_csv(read_text(path), path, delimiter=_delimiter(path)) if row]
    names = [name.strip() for name in table[0]]
    numbered = list(enumerate(table[1:], start=2))
    for number, row in numbered:
        if len(row) != len(names):
            raise NearfarError(
                f"{path}, row {number}: {len(row)} cells but {len(names)} columns: add missing cells, or quote a cell "
                "that contains the separator"
            )
    is_text = set(TEXTS) <= set(names)
    cells = {name: [row[i].strip() for _, row in numbered] for i, name in enumerate(names)}
    one, other = (cells[name] for name in (TEXTS if is_text else FILES))
    for number, pair in zip((number for number, _ in numbered), zip(one, other, strict=True), strict=True):
        if not all(pair):
            raise NearfarError(f"{path}, row {number}: a sample of the pair is empty")
        if pair[0] == pair[1]:
            raise NearfarError(f"{path}, row {number}: both samples of the pair are {pair[0]!r}: remove the row")
    grades = [
        _grade(cell, number, path)
        for cell, (number, _) in zip(cells.get("relation", ["1"] * len(one)), numbered, strict=True)
    ]
    samples = list(dict.fromkeys(name for pair in zip(one, other, strict=True) for name in pair))
    if not samples:
        raise NearfarError(f"{path} has a header but no rows")
    place = {name: i for i, name in enumerate(samples)}
    known = np.array([grade is not None for grade in grades])
    first, second = (np.array([place[name] for name in column], dtype=np.int64)[known] for column in (one, other))
    grade = np.array([grade for grade in grades if grade is not None], dtype=np.float64)
    _check_repeated(first, second, grade, samples, path)
    positive = grade >= POSITIVE
    groups = connect(first[positive], second[positive], len(samples))
    if is_text:
        check_texts(path, samples, range(1, 1 + len(samples)))
    manifest = Manifest(
        labels=groups,
        classes=tuple(str(i) for i in range(int(groups.max()) + 1)),
        split=_splits(cells, place, one, other, numbered, path),
        paths=None if is_text else tuple(samples),
        texts=tuple(samples) if is_text else None,
        annotations=Annotations(pairs=PairTable(first, second, grade, groups)),
        root=None if is_text else Path(os.path.normpath(path.parent if root is None else root)),
        source=path.name,
    )
    if "split" not in cells:
        manifest = manifest.split_by_class_order()
    return drop_missing(manifest, path, allow_partial=allow_partial)


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _grade(cell: str, number: int, path: Path) -> float | None:
    if not cell:
        return None
    try:
        grade = max(float(cell), 0.0) if cell in ("-1", "-1.0") else float(cell)
    except ValueError:
        grade = np.nan
    if not 0 <= grade <= 1:
        raise NearfarError(f"{path}, row {number}: relation must be 1, 0, -1 or a grade between 0 and 1, got {cell!r}")
    return grade


def _check_repeated(first: np.ndarray, second: np.ndarray, grade: np.ndarray, samples: list[str], path: Path) -> None:
    grades: dict[tuple[int, int], float] = {}
    for i, j, value in zip(first.tolist(), second.tolist(), grade.tolist(), strict=True):
        pair = (min(i, j), max(i, j))
        if grades.setdefault(pair, value) != value:
            raise NearfarError(
                f"{path}: the pair of {samples[i]!r} and {samples[j]!r} has the relations {grades[pair]:g} and "
                f"{value:g}: keep one"
            )


def _splits(
    cells: dict[str, list[str]],
    place: dict[str, int],
    one: list[str],
    other: list[str],
    numbered: list[tuple[int, list[str]]],
    path: Path,
) -> np.ndarray:
    splits = [""] * len(place)
    for split, pair, (number, _) in zip(
        cells.get("split", ["train"] * len(one)), zip(one, other, strict=True), numbered, strict=True
    ):
        if split not in SPLITS:
            raise NearfarError(
                f"{path}, row {number}: split must be one of {', '.join(SPLITS)}, got {split!r}{suggest(split, SPLITS)}"
            )
        for name in pair:
            if splits[place[name]] not in ("", split):
                raise NearfarError(
                    f"{path}, row {number}: {name!r} is in pairs of the splits {splits[place[name]]} and {split}: give "
                    "all its pairs the same split"
                )
            splits[place[name]] = split
    return np.array(splits)
