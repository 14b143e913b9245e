"""Apply the decisions on an audit: a corrected manifest and a record of all changes."""

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
from nearfar.spelling import suggest

DECISIONS = ("", "keep", "relabel", "remove")
COLUMNS = ("row", "path", "label", "suggested", "decision")


@dataclass(frozen=True)
class Change:
    """A change to one sample; `new` is empty if the sample was removed.

    Attributes:
        row: Row in the old manifest.
        path: Name of the sample.
        old: The old label.
        new: The new label.
    """

    row: int
    path: str
    old: str
    new: str


@dataclass(frozen=True)
class DecisionRow:
    """A row of a table of decisions that agrees with the manifest.

    Attributes:
        row: Row in the manifest.
        path: Name of the sample.
        label: The current label.
        suggested: The new label, for the decision "relabel".
        decision: One of DECISIONS.
    """

    row: int
    path: str
    label: str
    suggested: str
    decision: str

    @property
    def change(self) -> Change | None:
        """The change that the decision asks for, None if the sample stays as it is."""
        if self.decision == "remove":
            return Change(self.row, self.path, self.label, "")
        if self.decision != "relabel" or self.suggested == self.label:
            return None
        return Change(self.row, self.path, self.label, self.suggested)


def read_rows(manifest: Manifest, path: Path) -> list[DecisionRow]:
    """Read a table of decisions.

    The table is audit.csv with its last column filled in, or decisions.csv saved from the page. It needs the columns
    row, path, label, suggested and decision; others are ignored. Row, path and label must agree with the manifest, so
    that a table of other data, or one that was applied before, is an error.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    try:
        table = csv.DictReader(io.StringIO(text, newline=""))
        names, rows = table.fieldnames or (), list(table)
    except csv.Error as error:
        raise NearfarError(f"{path}: cannot be read as CSV ({error})") from error
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise NearfarError(f"{path}: column {missing[0]!r} is missing: the table needs {', '.join(COLUMNS)}")
    result = []
    changed = set()
    for line, cells in enumerate(rows, start=2):
        decision = _check_row(manifest, cells, f"{path}, row {line}")
        if decision.change is not None and decision.row in changed:
            raise NearfarError(
                f"{path}, row {line}: a second decision on sample {decision.row} ({decision.path}): keep one of them"
            )
        if decision.change is not None:
            changed.add(decision.row)
        result.append(decision)
    return result


def read_decisions(manifest: Manifest, path: Path) -> list[Change]:
    """Read the changes that a table of decisions asks for, sorted by row; see `read_rows`."""
    changes = [decision.change for decision in read_rows(manifest, path)]
    return sorted((change for change in changes if change is not None), key=lambda change: change.row)


def _check_row(manifest: Manifest, cells: dict[str, str], where: str) -> DecisionRow:
    decision = (cells["decision"] or "").strip().lower()
    if decision not in DECISIONS:
        raise NearfarError(f"{where}: unknown decision {decision!r}: use {', '.join(DECISIONS[1:])} or leave it empty")
    try:
        row = int(cells["row"])
    except (TypeError, ValueError):
        raise NearfarError(f"{where}: row must be a number, got {cells['row']!r}") from None
    if not 0 <= row < len(manifest):
        raise NearfarError(f"{where}: row {row} is out of range: the data has rows 0 to {len(manifest) - 1}")
    old = manifest.classes[manifest.labels[row]]
    if cells["path"] != manifest.name(row) or cells["label"] != old:
        actual, expected = f"{manifest.name(row)} ({old})", f"{cells['path']} ({cells['label']})"
        raise NearfarError(
            f"{where}: row {row} of the data is {actual}, not {expected}: the decisions belong to other data"
        )
    if decision == "relabel" and not cells["suggested"]:
        raise NearfarError(f"{where}: relabel needs a label in the column 'suggested'")
    return DecisionRow(row, cells["path"], old, cells["suggested"] or "", decision)


def apply_decisions(manifest: Manifest, path: Path, *, new_classes: bool = False) -> Manifest:
    """Return a manifest with the decisions of a table applied; the given manifest does not change.

    A class that loses all its samples stays in the list of classes.

    Args:
        manifest: The samples.
        path: The table, see `read_decisions`.
        new_classes: Whether a label that no class has becomes a new class; otherwise it is an error.
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
                suggestion = suggest(change.new, classes)
                raise NearfarError(f"{path}: {change.path}: there is no class {change.new!r}{suggestion}")
            number[change.new] = len(classes)
            classes.append(change.new)
        labels[change.row] = number[change.new]
    removed = int((~keep).sum())
    note = f"{path.name}: {len(changes) - removed:,} labels changed, {removed:,} samples removed"
    corrected = replace(manifest, classes=tuple(classes)).with_labels(labels, note)
    return corrected if not removed else corrected.subset(keep)


def save_corrected(manifest: Manifest, decisions: Path, out: Path, *, new_classes: bool = False) -> Manifest:
    """Write the corrected manifest to `out` (.csv or .npz) and a record of the changes to `out`.changes.csv.

    The record has the row, path, old label and new label of every change; the new label of a removed sample is empty.
    The old manifest can be restored from the two files.
    """
    corrected = apply_decisions(manifest, decisions, new_classes=new_classes)
    changes = out.with_name(f"{out.stem}.changes.csv")
    with atomic(changes) as draft, open(draft, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("row", "path", "old_label", "new_label"))
        writer.writerows((c.row, c.path, c.old, c.new) for c in read_decisions(manifest, decisions))
    save_manifest(corrected, out)
    return corrected
