"""The decisions of an audit. They are saved in decisions.csv before the server responds, and read at the next start."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from nearfar.audit.decisions import COLUMNS, DECISIONS, read_rows
from nearfar.csv_files import format_csv, write_csv
from nearfar.data import Manifest
from nearfar.directory_lock import lock_directory
from nearfar.errors import NearfarError
from nearfar.files import remove_drafts


@dataclass(frozen=True)
class Decision:
    """A decision about a sample: "keep", "relabel" or "remove". `label` is the new class for "relabel"."""

    decision: str
    label: int | None = None


class DecisionFile:
    """Decisions about rows of a manifest, saved in a file that `nearfar audit --apply` reads.

    Each decision rewrites the file atomically. If another process has changed the file, it is first read again. A lock
    on the directory ensures that only one process at a time changes the file.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._numbers = {name: i for i, name in enumerate(manifest.classes)}
        self._lock = threading.Lock()
        self._decisions: dict[int, Decision] = {}
        self._signature: tuple[int, int, int] | None = None
        remove_drafts(path.parent, path.name)
        self._refresh()

    def all(self) -> dict[int, Decision]:
        """Return a dict that maps rows of the manifest to decisions."""
        with self._lock:
            self._refresh()
            return dict(self._decisions)

    def decide(self, row: int, decision: str, label: int | None = None) -> None:
        """Save a decision. It is on disk when this method returns.

        Args:
            row: A row of the manifest.
            decision: "keep", "relabel", "remove", or "" to undo an earlier decision.
            label: The new class, for "relabel" only.
        """
        if decision not in DECISIONS:
            raise ValueError(f"decision must be one of {', '.join(map(repr, DECISIONS))}, got {decision!r}")
        if not 0 <= row < len(self.manifest):
            raise ValueError(f"row must be in 0..{len(self.manifest) - 1}, the rows of the data, got {row}")
        if (decision == "relabel") != (label is not None):
            raise ValueError(
                "label is required for relabel and not allowed for other decisions, "
                f"got decision={decision!r} and label={label!r}"
            )
        if label is not None and not 0 <= label < len(self.manifest.classes):
            raise ValueError(f"label must be in 0..{len(self.manifest.classes) - 1}, got {label}")
        with self._lock, self._lock_file():
            self._refresh()
            decisions = dict(self._decisions)
            decisions.pop(row, None)
            if decision:
                decisions[row] = Decision(decision, label)
            self._write(decisions)
            self._decisions = decisions
            self._signature = self._read_signature()

    def content(self) -> bytes:
        """Return the bytes of the file, or only the header if there are no decisions yet."""
        return self.path.read_bytes() if self.path.is_file() else format_csv([COLUMNS]).encode()

    def _lock_file(self) -> AbstractContextManager[None]:
        """Keep other processes from changing the file. Each process holds the lock only for milliseconds."""
        state, remedy = "is being written", "wait until it has finished"
        return lock_directory(self.path.parent, "decisions", state=state, remedy=remedy, wait=lambda _: None)

    def _read_signature(self) -> tuple[int, int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _refresh(self) -> None:
        signature = self._read_signature()
        if signature == self._signature:
            return
        self._decisions = {} if signature is None else self._read()
        self._signature = signature

    def _read(self) -> dict[int, Decision]:
        decisions = {}
        for row in read_rows(self.manifest, self.path):
            label = self._numbers.get(row.suggested) if row.decision == "relabel" else None
            if row.decision == "relabel" and label is None:
                problem = f"{self.path}: {row.path}: there is no class {row.suggested!r}"
                raise NearfarError(f"{problem}: correct the class name, or move the file away")
            if row.decision:
                decisions[row.row] = Decision(row.decision, label)
        return decisions

    def _write(self, decisions: dict[int, Decision]) -> None:
        names, labels = self.manifest.classes, self.manifest.labels
        rows: list[tuple[object, ...]] = [COLUMNS]
        for row, decision in sorted(decisions.items()):
            old = names[labels[row]]
            new = old if decision.label is None else names[decision.label]
            rows.append((row, self.manifest.name(row), old, new, decision.decision))
        write_csv(self.path, rows)
