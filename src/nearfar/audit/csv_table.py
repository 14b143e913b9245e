"""The CSV tables of an audit: one of all samples, one of near duplicates, and one of outliers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nearfar.audit.near_duplicates import Neighborhoods
from nearfar.audit.ranking import Audit
from nearfar.csv_files import write_csv as write_rows
from nearfar.data.manifest import Manifest

COLUMNS = ("row", "path", "label", "suggested", "score", "reason", "nearest", "decision")
NEIGHBORS = 5


def write_csv(audit: Audit, manifest: Manifest, path: Path) -> Path:
    """Write the audit of a manifest as a CSV file atomically, most suspicious samples first, and return its path.

    The column `nearest` names the five nearest samples with their labels. The column `decision` is empty. Fill in
    "keep", "relabel" or "remove", and pass the file to `apply_decisions`. A sample with the decision "relabel" gets the
    label in the column `suggested`, which may be edited.
    """
    check_same_rows(audit, manifest)
    return write_rows(path, _rows(audit, manifest))


def _rows(audit: Audit, manifest: Manifest) -> Iterator[tuple[object, ...]]:
    yield COLUMNS
    names, labels = manifest.classes, manifest.labels.tolist()
    for row in audit.order().tolist():
        near = [f"{manifest.name(i)} ({names[labels[i]]})" for i in audit.neighbors[row, :NEIGHBORS].tolist()]
        label, suggested = names[labels[row]], names[int(audit.suggested[row])]
        score, reason = f"{audit.score[row]:.4f}", audit.reason(row)
        yield row, manifest.name(row), label, suggested, score, reason, "; ".join(near), ""


def write_duplicates(found: Neighborhoods, manifest: Manifest, path: Path) -> Path:
    """Write the groups of near duplicates as a CSV file atomically and return its path.

    The file can serve as a table of decisions: fill in its column `decision`, and pass it to `apply_decisions`.
    """
    header = ("row", "path", "label", "suggested", "decision", "group", "split", "distance", "across_splits")
    rows = [
        (*_identify(manifest, row), number, manifest.split[row], f"{group.distance:.6f}", group.is_across_splits)
        for number, group in enumerate(found.groups, start=1)
        for row in group.rows.tolist()
    ]
    return write_rows(path, [header, *rows])


def write_outliers(found: Neighborhoods, manifest: Manifest, path: Path) -> Path:
    """Write the outliers as a CSV file atomically and return its path.

    Outliers are ordered by their mean distance to their ten nearest neighbors, largest first. The file can serve as a
    table of decisions: fill in its column `decision`, and pass it to `apply_decisions`.
    """
    header = ("row", "path", "label", "suggested", "decision", "split", "distance")
    rows = [
        (*_identify(manifest, row), manifest.split[row], f"{found.distance[row]:.6f}")
        for row in found.outliers.tolist()
    ]
    return write_rows(path, [header, *rows])


def _identify(manifest: Manifest, row: int) -> tuple[object, ...]:
    label = manifest.classes[int(manifest.labels[row])]
    return row, manifest.name(row), label, label, ""


def check_same_rows(audit: Audit, manifest: Manifest) -> None:
    """Raise `ValueError` if the audit and the manifest differ in the number of samples or in the labels."""
    if len(audit) != len(manifest):
        raise ValueError(
            f"audit has {len(audit)} samples but {manifest!r} has {len(manifest)}: pass the audit of this data"
        )
    if (audit.labels != manifest.labels).any():
        raise ValueError(f"the labels of the audit differ from those of {manifest!r}: pass the audit of this data")
