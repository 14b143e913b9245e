"""Decisions on an audit, applied: a corrected manifest, and a file of everything that it changes."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearfar.data.manifest import Manifest
from nearfar.data.open import save_manifest
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.validation import nearest

DECISIONS = ("", "keep", "relabel", "remove")
NEEDED = ("row", "path", "label", "suggested", "decision")


@dataclass(frozen=True)
class Change:
    """A row of the old manifest that is different in the new one; `new` is "" where it was removed."""

    row: int
    path: str
    old: str
    new: str


def read_decisions(manifest: Manifest, path: Path) -> list[Change]:
    """The changes that a table of decisions asks for: audit.csv with its last column filled, or the page's download.

    Columns row, path, label, suggested, decision (others are passed over). Row, path and label must be those of the
    manifest, so that a table of other data, or one applied before, is an error and not a mess.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    try:
        table = csv.DictReader(io.StringIO(text, newline=""))
        names, rows = table.fieldnames or (), list(table)
    except csv.Error as error:
        raise NearfarError(f"{path}: is not readable as CSV ({error})") from error
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise NearfarError(f"{path}: has no column {missing[0]!r}: expected {', '.join(NEEDED)}")
    changes: dict[int, Change] = {}
    for line, cells in enumerate(rows, start=2):
        change = _change(manifest, cells, f"{path}, row {line}")
        if change is None:
            continue
        if change.row in changes:
            raise NearfarError(f"{path}, row {line}: decides twice on row {change.row} ({change.path})")
        changes[change.row] = change
    return [changes[row] for row in sorted(changes)]


def _change(manifest: Manifest, cells: dict[str, str], where: str) -> Change | None:
    decision = (cells["decision"] or "").strip().lower()
    if decision not in DECISIONS:
        raise NearfarError(f"{where}: the decision {decision!r} is none of {', '.join(DECISIONS[1:])}")
    try:
        row = int(cells["row"])
    except (TypeError, ValueError):
        raise NearfarError(f"{where}: the row {cells['row']!r} is no number") from None
    if not 0 <= row < len(manifest):
        raise NearfarError(f"{where}: the data has no row {row}, only 0..{len(manifest) - 1}")
    old = manifest.classes[manifest.labels[row]]
    if cells["path"] != manifest.name(row) or cells["label"] != old:
        has, says = f"{manifest.name(row)} ({old})", f"{cells['path']} ({cells['label']})"
        raise NearfarError(f"{where}: row {row} of the data is {has}, not {says}: the decisions are on other data")
    if decision == "remove":
        return Change(row, cells["path"], old, "")
    if decision != "relabel" or cells["suggested"] == old:
        return None
    if not cells["suggested"]:
        raise NearfarError(f"{where}: relabel needs a label in the column suggested")
    return Change(row, cells["path"], old, cells["suggested"])


def apply_decisions(manifest: Manifest, path: Path, *, new_classes: bool = False) -> Manifest:
    """The manifest with the decisions of a table applied; see `read_decisions`. The old manifest stays as it is.

    A label that no class has is an error that names the nearest, or with `new_classes` a new class. A class that loses
    all its samples stays in the list of classes.
    """
    changes = read_decisions(manifest, path)
    classes = list(manifest.classes)
    labels, keep = manifest.labels.copy(), np.ones(len(manifest), dtype=np.bool_)
    number = {name: i for i, name in enumerate(classes)}
    for change in changes:
        if not change.new:
            keep[change.row] = False
            continue
        if change.new not in number:
            if not new_classes:
                near = nearest(change.new, classes)
                raise NearfarError(f"{path}: {change.path}: there is no class {change.new!r}{near}")
            number[change.new] = len(classes)
            classes.append(change.new)
        labels[change.row] = number[change.new]
    removed = int((~keep).sum())
    note = f"{path.name}: {len(changes) - removed:,} labels changed, {removed:,} samples removed"
    corrected = replace(manifest, classes=tuple(classes)).with_labels(labels, note)
    return corrected if not removed else corrected.subset(keep)


def save_corrected(manifest: Manifest, decisions: Path, out: Path, *, new_classes: bool = False) -> Manifest:
    """Write the corrected manifest to `out` (.csv or .npz), and beside it `out`.changes.csv.

    The latter has row, path, old and new label of every row that changed, the new one empty where it was removed, so
    the old manifest can be had back from the two.
    """
    corrected = apply_decisions(manifest, decisions, new_classes=new_classes)
    changes = out.with_name(f"{out.stem}.changes.csv")
    with atomic(changes) as draft, open(draft, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row", "path", "old_label", "new_label"))
        writer.writerows((c.row, c.path, c.old, c.new) for c in read_decisions(manifest, decisions))
    save_manifest(corrected, out)
    return corrected
