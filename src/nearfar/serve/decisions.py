"""The decisions of an audit, kept in decisions.csv: on disk before the answer, read back at the next start."""

from __future__ import annotations

import csv
import io
import threading
from dataclasses import dataclass
from pathlib import Path

from nearfar.audit.decisions import DECISIONS, NEEDED, read_decisions
from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.files import atomic


@dataclass(frozen=True)
class Decision:
    """keep, relabel or remove; `label` is the class that relabel gives."""

    decision: str
    label: int | None = None


class Ledger:
    """Decisions on rows of a manifest in a file that `nearfar audit --apply` reads.

    Every change writes the whole file anew and renames it, so that a crash leaves the one before or after. A file that
    another process changed meanwhile is read again first.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._number = {name: i for i, name in enumerate(manifest.classes)}
        self._lock = threading.Lock()
        self._known: dict[int, Decision] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._refresh()

    def all(self) -> dict[int, Decision]:
        """Decisions by row."""
        with self._lock:
            self._refresh()
            return dict(self._known)

    def decide(self, row: int, decision: str, label: int | None = None) -> None:
        """Write a decision; "" takes one back. It is on disk when this returns."""
        if decision not in DECISIONS:
            raise ValueError(f"decision must be one of {', '.join(map(repr, DECISIONS))}, got {decision!r}")
        if not 0 <= row < len(self.manifest):
            raise ValueError(f"row must be 0..{len(self.manifest) - 1}, got {row}")
        if (decision == "relabel") != (label is not None):
            raise ValueError("relabel needs a label, the other decisions have none")
        if label is not None and not 0 <= label < len(self.manifest.classes):
            raise ValueError(f"label must be 0..{len(self.manifest.classes) - 1}, got {label}")
        with self._lock:
            self._refresh()
            changed = dict(self._known)
            changed.pop(row, None)
            if decision:
                changed[row] = Decision(decision, label)
            self._write(changed)
            self._known = changed
            self._stamp = self._signature()

    def text(self) -> bytes:
        """The file as it is, or only its first line where nothing was decided yet."""
        return self.path.read_bytes() if self.path.is_file() else (",".join(NEEDED) + "\n").encode()

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _refresh(self) -> None:
        stamp = self._signature()
        if stamp == self._stamp:
            return
        self._known = {} if stamp is None else self._read()
        self._stamp = stamp

    def _read(self) -> dict[int, Decision]:
        # refuses a file of other data; it gives only what changes the manifest, so `keep` is read below
        read_decisions(self.manifest, self.path)
        text = self.path.read_bytes().decode("utf-8-sig", "surrogateescape")
        known = {}
        for cells in csv.DictReader(io.StringIO(text, newline="")):
            decision = (cells["decision"] or "").strip().lower()
            label = self._number.get(cells["suggested"]) if decision == "relabel" else None
            if decision == "relabel" and label is None:
                name = f"{self.path}: {cells['path']}: there is no class {cells['suggested']!r}"
                raise NearfarError(f"{name}: correct it, or move the file away")
            if decision:
                known[int(cells["row"])] = Decision(decision, label)
        return known

    def _write(self, decisions: dict[int, Decision]) -> None:
        names, labels = self.manifest.classes, self.manifest.labels
        with (
            atomic(self.path) as draft,
            open(draft, "w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(NEEDED)
            for row, each in sorted(decisions.items()):
                own = names[labels[row]]
                given = own if each.label is None else names[each.label]
                writer.writerow((row, self.manifest.name(row), own, given, each.decision))
