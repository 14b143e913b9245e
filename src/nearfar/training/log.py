"""The log of a run: one JSON object a line, and the same to trackers that people already watch."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.training.trackers import Tracker


class Log:
    """Appends entries to `log.jsonl`; every entry has a kind and a step.

    Opened with `step` and `epoch`, entries after them are removed first: a resumed run writes them again.
    """

    def __init__(self, path: Path, *, step: int = 0, epoch: int = 0, trackers: tuple[Tracker, ...] = ()) -> None:
        self.path, self.trackers = path, trackers
        if path.exists():
            kept = [
                entry
                for entry in read_log(path)
                if entry["step"] <= step
                and entry["kind"] != "end"
                # the end of an epoch has the step of its last batch, after which a checkpoint may have been written
                and not (entry["kind"] == "epoch" and entry.get("epoch", -1) >= epoch)
            ]
            with atomic(path) as draft:
                draft.write_text("".join(_line(entry) for entry in kept), encoding="utf-8")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._unwritten(error) from error

    def write(self, kind: str, step: int, **values: Any) -> None:
        """One entry; numbers go to the trackers as well, those of inner tables as `table/name`."""
        try:
            self._file.write(_line({"kind": kind, "step": step, **values}))
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error
        numbers = dict(_numbers(values))
        for tracker in self.trackers:
            tracker.log(numbers, step)

    def close(self) -> None:
        """Close the file and the trackers."""
        with contextlib.suppress(OSError):  # every entry was flushed; one that could not be was an error then
            self._file.close()
        for tracker in self.trackers:
            tracker.close()

    def _unwritten(self, error: OSError) -> NearfarError:
        return NearfarError(f"{self.path}: cannot be written ({error.strerror}): check the disk and permissions")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The entries of a log; from a line on that a kill cut off, or that is damaged, they are left out."""
    entries = []
    for line in path.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not (isinstance(entry, dict) and isinstance(entry.get("kind"), str) and isinstance(entry.get("step"), int)):
            break
        entries.append(entry)
    return entries


def _line(entry: Mapping[str, Any]) -> str:
    # NaN is not JSON
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}
    return json.dumps(clean) + "\n"


def _numbers(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}", float(value)
