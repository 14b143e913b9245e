"""audit.csv: every sample, the most suspicious first."""

from __future__ import annotations

import csv
from pathlib import Path

from nearfar.audit.ranking import Audit
from nearfar.data.manifest import Manifest
from nearfar.files import atomic

COLUMNS = ("row", "path", "label", "suggested", "score", "reason", "nearest", "decision")
SHOWN = 5


def write_csv(found: Audit, manifest: Manifest, path: Path) -> Path:
    """Write the audit of a manifest's rows, whole or not at all.

    `nearest` names the five nearest samples with their labels; `decision` is empty, to be filled with keep, relabel (to
    `suggested`, which may be edited) or remove: the file is then what `apply_decisions` reads.
    """
    check_same_rows(found, manifest)
    names, labels = manifest.classes, manifest.labels.tolist()
    with atomic(path) as draft, open(draft, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in found.order().tolist():
            near = [f"{manifest.name(i)} ({names[labels[i]]})" for i in found.neighbors[row, :SHOWN].tolist()]
            label, suggested = names[labels[row]], names[int(found.suggested[row])]
            score, reason = f"{found.score[row]:.4f}", found.reason(row)
            writer.writerow([row, manifest.name(row), label, suggested, score, reason, "; ".join(near), ""])
    return path


def check_same_rows(found: Audit, manifest: Manifest) -> None:
    """The audit is of this manifest."""
    if len(found) != len(manifest) or (found.labels != manifest.labels).any():
        raise ValueError(f"found is an audit of other data: {len(found)} rows, {manifest!r} has {len(manifest)}")
