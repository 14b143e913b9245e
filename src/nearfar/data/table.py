"""Manifests as tables: CSV and Parquet with the columns path, label and, if wanted, split and role."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.layouts.archive import SUFFIXES as ARCHIVES
from nearfar.data.layouts.archive import load_archive
from nearfar.data.layouts.paths import find_missing
from nearfar.data.manifest import ROLES, SPLITS, Manifest, number_labels
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.validation import nearest

COLUMNS = ("path", "label", "split", "role")
MARK = "# nearfar manifest 1: "


def open_csv(path: Path, *, root: Path | None = None, allow_partial: bool = False) -> Manifest:
    """Columns path, label[, split[, role]] in any order after a header; others are passed over. Tabs in a .tsv.

    Paths are relative to `root` (a folder or a tar; by default what a saved manifest says, or the table's folder).
    Labels are strings as they are written: 007 is not 7. Without a split column the split is by class order. Listed
    files that do not exist are an error, or left out and counted with `allow_partial`.
    """
    try:
        # undecodable file names survive the round trip as surrogates, as in os.fsdecode
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    known: dict[str, Any] = {}
    first, _, rest = text.partition("\n")
    if first.startswith(MARK):
        try:
            known, text = _provenance(first.removeprefix(MARK)), rest
        except ValueError as error:
            raise NearfarError(f"{path}, line 1: the manifest's own line is damaged ({error}): remove it") from error
    skipped = 1 if known else 0
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ","))
    except csv.Error as error:
        raise NearfarError(f"{path}: is not readable as CSV ({error})") from error
    if not table:
        raise NearfarError(f"{path}: is empty: expected the columns path,label")
    header = [name.strip() for name in table[0]]
    rows = [(number, row) for number, row in enumerate(table[1:], start=2 + skipped) if row]
    for number, row in rows:
        if len(row) != len(header):
            raise NearfarError(f"{path}, row {number}: {len(row)} cells under {len(header)} columns: quote the commas")
    columns = {name: [row[i] for _, row in rows] for i, name in enumerate(header)}
    manifest = _build(path, columns, [number for number, _ in rows], root=root, known=known)
    return _existing(manifest, path, allow_partial=allow_partial)


def _provenance(text: str) -> dict[str, Any]:
    """The first line that `save_csv` wrote; a ValueError for what it did not."""
    try:
        known = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(known, dict):
        raise ValueError(f"it is {type(known).__name__}, no table")
    for key in ("source", "root", "fingerprint"):
        if not isinstance(known.get(key, ""), str):
            raise ValueError(f"{key} must be text, got {known[key]!r}")
    for key in ("classes", "notes"):
        words = known.get(key, [])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{key} must be a list of texts, got {words!r}")
    if len(set(known.get("classes", ()))) != len(known.get("classes", ())):
        raise ValueError("classes must be distinct names")
    return known


def open_parquet(path: Path, *, root: Path | None = None, allow_partial: bool = False) -> Manifest:
    """The same columns from Parquet; labels are strings or integers (floats are refused: ids must be exact)."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise NearfarError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or save it as CSV") from error
    try:
        file = parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if name in COLUMNS]
        table = file.read(columns=names).to_pydict()
    except Exception as error:  # pyarrow raises its own kinds
        raise NearfarError(f"{path}: is not readable as Parquet ({error})") from error
    columns: dict[str, list[str]] = {}
    for name, values in table.items():
        for row, value in enumerate(values):
            if not isinstance(value, str | int) or isinstance(value, bool):
                kind = type(value).__name__
                raise NearfarError(f"{path}, column {name}, row {row}: {kind} {value!r}: strings or integers expected")
        columns[name] = [str(value) for value in values]
    length = len(next(iter(columns.values()), []))
    manifest = _build(path, columns, range(length), root=root, known={})
    return _existing(manifest, path, allow_partial=allow_partial)


def _build(
    path: Path,
    columns: Mapping[str, list[str]],
    numbers: Sequence[int],
    *,
    root: Path | None,
    known: Mapping[str, Any],
) -> Manifest:
    for name in ("path", "label"):
        if name not in columns:
            raise NearfarError(f"{path}: has no column {name!r} (it has {', '.join(columns)}){nearest(name, columns)}")
    if not columns["path"]:
        raise NearfarError(f"{path}: has a header and no rows")
    for name in ("path", "label"):
        empty = next((number for number, cell in zip(numbers, columns[name], strict=True) if not cell), None)
        if empty is not None:
            raise NearfarError(f"{path}, row {empty}: the {name} is empty")
    for name, allowed in (("split", SPLITS), ("role", ROLES)):
        for number, cell in zip(numbers, columns.get(name, ()), strict=False):
            if cell not in allowed:
                want = ", ".join(word for word in allowed if word)
                near = nearest(cell, allowed)
                raise NearfarError(f"{path}, row {number}: the {name} {cell!r} is none of {want}{near}")
    classes = known.get("classes")
    if classes is not None and not set(columns["label"]) <= set(classes):
        classes = None  # edited by hand: new labels, so a new order
    labels, order = number_labels(columns["label"], classes)
    if root is None:
        root = path.parent / known["root"] if "root" in known else path.parent
    manifest = Manifest(
        labels=labels,
        classes=order,
        split=np.array(columns.get("split") or ["train"] * len(labels)),
        role=np.array(columns["role"]) if "role" in columns else None,
        paths=tuple(columns["path"]),
        root=Path(os.path.normpath(root)),
        source=known.get("source", path.name),
        notes=tuple(known.get("notes", ())),
    )
    if "split" not in columns:
        manifest = manifest.split_by_class_order()
    if "fingerprint" in known and known["fingerprint"] != manifest.fingerprint:
        manifest = replace(manifest, notes=(*manifest.notes, f"{path.name} was edited after nearfar saved it"))
    return manifest


def _existing(manifest: Manifest, table: Path, *, allow_partial: bool) -> Manifest:
    paths, root = manifest.paths or (), manifest.root or table.parent
    if root.name.endswith(ARCHIVES) and root.is_file():
        members = load_archive(root, allow_partial=allow_partial).members
        absent = [path for path in paths if path not in members]
    else:
        absent = find_missing(root, paths)
    if not absent:
        return manifest
    what = f"{len(absent):,} of {len(paths):,} listed files do not exist below {root}, the first: {absent[0]}"
    if not allow_partial:
        raise NearfarError(f"{table}: {what}: name their folder as root, or allow a partial read")
    if len(absent) == len(paths):
        raise NearfarError(f"{table}: {what}: name their folder as root")
    gone = frozenset(absent)
    kept = manifest.subset(np.array([path not in gone for path in paths]))
    return replace(kept, notes=(*kept.notes, what))


def save_csv(manifest: Manifest, path: Path) -> None:
    """Writes path, label, split (and role) with one line of provenance above, whole or not at all.

    The first line holds source, root (relative to the table where it can be), notes, the fingerprint and, where the
    rows alone would not give it back, the order of the classes; readers other than nearfar skip one line.
    """
    if manifest.kind != "files" or manifest.paths is None:
        raise NearfarError(f"{path}: a manifest of {manifest.kind} has no paths for a CSV: save it as .npz")
    names = [manifest.classes[label] for label in manifest.labels.tolist()]
    known: dict[str, Any] = {"source": manifest.source, "fingerprint": manifest.fingerprint}
    if manifest.root is not None:
        known["root"] = _relative(manifest.root, path.parent)
    if manifest.notes:
        known["notes"] = list(manifest.notes)
    if number_labels(names)[1] != manifest.classes:
        known["classes"] = list(manifest.classes)
    roles = None if manifest.role is None else manifest.role.tolist()
    with atomic(path) as draft, open(draft, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(MARK + json.dumps(known, ensure_ascii=True) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS[: 3 if roles is None else 4])
        columns = [manifest.paths, names, manifest.split.tolist(), *([] if roles is None else [roles])]
        writer.writerows(zip(*columns, strict=True))


def _relative(root: Path, folder: Path) -> str:
    try:
        return os.path.relpath(root, folder)
    except ValueError:  # another drive
        return str(root.resolve())
