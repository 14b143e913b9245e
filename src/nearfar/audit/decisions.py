"""Apply the decisions of an audit: write a corrected manifest and a record of all changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearfar.csv_files import parse_csv, read_text, write_csv
from nearfar.data.manifest import Ints, Manifest
from nearfar.data.open import save_manifest
from nearfar.errors import NearfarError
from nearfar.formatting import counted
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
    """A row of a table of decisions, after its row number, path and label were checked against the manifest.

    Attributes:
        row: Row in the manifest.
        path: Name of the sample.
        label: The current label.
        suggested: The new label, for the decision "relabel".
        decision: "keep", "relabel", "remove", or "" if there is no decision.
    """

    row: int
    path: str
    label: str
    suggested: str
    decision: str

    @property
    def change(self) -> Change | None:
        """Return the change that the decision requires, or None if the sample does not change."""
        if self.decision == "remove":
            return Change(self.row, self.path, self.label, "")
        if self.decision != "relabel" or self.suggested == self.label:
            return None
        return Change(self.row, self.path, self.label, self.suggested)


def read_rows(manifest: Manifest, path: Path) -> list[DecisionRow]:
    """Read a table of decisions and return its rows.

    The table is audit.csv, duplicates.csv or outliers.csv with the column `decision` filled in, or decisions.csv, which
    the review page saves. It needs the columns `row`, `path`, `label`, `suggested` and `decision`. Other columns are
    ignored. `row`, `path` and `label` must agree with the manifest. This check rejects tables for other data and tables
    that were already applied.
    """
    table = [row for row in parse_csv(read_text(path), path) if row]
    names = table[0] if table else []
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise NearfarError(f"{path}: column {missing[0]!r} is missing: the table needs {', '.join(COLUMNS)}")
    result = []
    changed = set()
    for line, row in enumerate(table[1:], start=2):
        cells = dict.fromkeys(names, "") | dict(zip(names, row, strict=False))
        decision = _check_row(manifest, cells, f"{path}, row {line}")
        if decision.change is not None and decision.row in changed:
            raise NearfarError(
                f"{path}, row {line}: a second decision on sample {decision.row} ({decision.path}): keep only one"
            )
        if decision.change is not None:
            changed.add(decision.row)
        result.append(decision)
    return result


def read_decisions(manifest: Manifest, path: Path) -> list[Change]:
    """Read a table of decisions and return the changes that it requires, sorted by row; see `read_rows`."""
    changes = [decision.change for decision in read_rows(manifest, path)]
    return sorted((change for change in changes if change is not None), key=lambda change: change.row)


def _check_row(manifest: Manifest, cells: dict[str, str], where: str) -> DecisionRow:
    decision = cells["decision"].strip().lower()
    if decision not in DECISIONS:
        raise NearfarError(f"{where}: unknown decision {decision!r}: use {', '.join(DECISIONS[1:])} or leave it empty")
    try:
        row = int(cells["row"])
    except ValueError:
        raise NearfarError(f"{where}: the column 'row' must contain a number, got {cells['row']!r}") from None
    if not 0 <= row < len(manifest):
        raise NearfarError(f"{where}: row {row} is out of range: the data has rows 0 to {len(manifest) - 1}")
    old = manifest.classes[manifest.labels[row]]
    if cells["path"] != manifest.name(row) or cells["label"] != old:
        actual, expected = f"{manifest.name(row)} ({old})", f"{cells['path']} ({cells['label']})"
        raise NearfarError(
            f"{where}: row {row} of the data is {actual}, not {expected}: the decisions belong to other data, or they "
            "were already applied"
        )
    if decision == "relabel" and not cells["suggested"]:
        raise NearfarError(f"{where}: relabel needs a label in the column 'suggested'")
    return DecisionRow(row, cells["path"], old, cells["suggested"], decision)


def apply_decisions(manifest: Manifest, path: Path, *, new_classes: bool = False) -> Manifest:
    """Return a copy of a manifest with the decisions of a table applied.

    A class that loses all its samples stays in the list of classes. If no class is spread over several splits, samples
    with a new label move to the split of their new class.

    Args:
        manifest: The samples.
        path: The table of decisions, see `read_rows`.
        new_classes: If True, a new label that is not a class of the manifest becomes a new class. Otherwise, such a
            label raises an error.
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
    note = f"{path.name}: {counted(len(changes) - removed, 'label')} changed, {counted(removed, 'sample')} removed"
    corrected = replace(manifest, classes=tuple(classes)).with_labels(labels, note)
    corrected = _move_to_split_of_class(manifest, corrected, np.array([c.row for c in changes if c.new], np.int64))
    return corrected if not removed else corrected.subset(keep)


def _move_to_split_of_class(before: Manifest, after: Manifest, changed: Ints) -> Manifest:
    """Move samples with a new label to the split of their new class, if no class was spread over several splits.

    Without the move, the new class would be in two splits, and test scores would no longer measure unseen classes. All
    samples of a class that did not exist before go to the split that most of them come from.

    Args:
        before: The samples with their old labels.
        after: The same samples with their new labels.
        changed: Rows whose label has changed.
    """
    split_of: dict[int, str] = {}
    for label in np.unique(before.labels).tolist():
        names = np.unique(before.split[before.labels == label])
        if len(names) > 1:
            return after
        split_of[label] = str(names[0])
    for label in set(after.labels[changed].tolist()) - split_of.keys():
        names, counts = np.unique(before.split[after.labels == label], return_counts=True)
        split_of[label] = str(names[counts.argmax()])
    split = after.split.astype("<U5")
    for row in changed.tolist():
        split[row] = split_of[int(after.labels[row])]
    moved = np.flatnonzero(split != before.split)
    if not len(moved):
        return after
    role = None if after.role is None else after.role.astype("<U7")
    if role is not None:
        role[moved] = np.where(split[moved] == "train", "train", "gallery")
    note = f"{counted(len(moved), 'sample')} moved to the split of the new class"
    return replace(after, split=split, role=role).with_labels(after.labels, note)


def changes_file(out: Path) -> Path:
    """Return the path of the record of changes, NAME.changes.csv in the directory of the corrected manifest `out`."""
    return out.with_name(f"{out.stem}.changes.csv")


def save_corrected(manifest: Manifest, decisions: Path, out: Path, *, new_classes: bool = False) -> Manifest:
    """Write the corrected manifest to `out` (.csv or .npz), write a record of the changes, and return the manifest.

    For NAME.csv or NAME.npz, the record is NAME.changes.csv in the same directory. It has the row, path, old label and
    new label of every change; the new label of a removed sample is empty. The old labels can be restored from the two
    files.
    """
    corrected = apply_decisions(manifest, decisions, new_classes=new_classes)
    rows = [(c.row, c.path, c.old, c.new) for c in read_decisions(manifest, decisions)]
    write_csv(changes_file(out), [("row", "path", "old_label", "new_label"), *rows])
    save_manifest(corrected, out)
    return corrected
