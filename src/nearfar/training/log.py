"""The log of a run: a file with one JSON object per line. Its numbers are also sent to experiment trackers."""

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
    """Appends entries to `log.jsonl`. Every entry has a kind and a step."""

    def __init__(self, path: Path, *, step: int = 0, epoch: int = 0, trackers: tuple[Tracker, ...] = ()) -> None:
        """Open a log.

        Args:
            path: The file.
            step, epoch: Current step and epoch of the run. Later entries are removed, because a resumed run writes them
                again.
            trackers: Trackers that also receive the numbers.
        """
        self.path, self.trackers = path, trackers
        if path.exists():
            entries = [
                entry
                for entry in read_log(path)
                if entry["step"] <= step
                and entry["kind"] != "end"
                # Compare epochs too: a checkpoint that was saved between the last batch of an epoch and the end of the
                # epoch has the same step as the entry of the epoch, but the resumed run writes that entry again.
                and not (entry["kind"] == "epoch" and entry.get("epoch", -1) >= epoch)
            ]
            with atomic(path) as draft:
                draft.write_text("".join(_line(entry) for entry in entries), encoding="utf-8")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._write_error(error) from error

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Write an entry, and send its numbers to the trackers. A number in a nested dict is named `outer/inner`."""
        try:
            self._file.write(_line({"kind": kind, "step": step, **values}))
            self._file.flush()
        except OSError as error:
            raise self._write_error(error) from error
        numbers = dict(_numbers(values))
        for tracker in self.trackers:
            tracker.log(numbers, step)

    def close(self) -> None:
        """Close the file and the trackers."""
        with contextlib.suppress(OSError):  # nothing is lost, because every entry was flushed when it was written
            self._file.close()
        for tracker in self.trackers:
            tracker.close()

    def _write_error(self, error: OSError) -> NearfarError:
        return NearfarError(f"{self.path}: cannot be written ({error.strerror}): check disk space and permissions")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a log up to the first damaged line. A killed process may leave an incomplete last line."""
    entries = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check its permissions") from error
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not (isinstance(entry, dict) and isinstance(entry.get("kind"), str) and isinstance(entry.get("step"), int)):
            break
        entries.append(entry)
    return entries


def _line(entry: Mapping[str, Any]) -> str:
    # JSON has no NaN or infinity, so write null
    clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in entry.items()}
    return json.dumps(clean) + "\n"


def _numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
