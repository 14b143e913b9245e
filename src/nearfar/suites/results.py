"""The results file of a suite: one JSON object per line, appended when a run finishes.

A cell is a combination of dataset, method, seed and value of the swept setting. A trial is a run that tests one
combination of settings during tuning.
If the process is killed, only the unfinished runs are lost. The kinds of lines are:

    {"kind": "suite", "suite": ..., "places": [{data, method, sweep, seed, id}, ...]}   the suite and its cells
    {"kind": "trial", "id": ..., "settings": [...], "value": ...}                       validation score of a trial
    {"kind": "cell", "id": ..., "test": {...}, "untrained": {...}, ...}                 scores of a cell
    {"kind": "error", "id": ..., "message": ...}                                        error of a cell or trial

If there are several suite lines, the last one is used. If the last line of the file has no newline, it was cut off when
the process was killed, and it is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from nearfar.errors import NearfarError
from nearfar.files import lock
from nearfar.suites.suite import Suite
from nearfar.suites.suite_file import suite_from_dict

KINDS = ("suite", "trial", "cell", "error")


@dataclass(frozen=True)
class Results:
    """The content of a results file.

    Attributes:
        suite: the suite, from the last "suite" line of the file.
        places: dataset, method, value of the sweep, seed and id of each cell in the tables.
        cells: maps the id of each finished cell to its "cell" line (scores and details of the run).
        errors: maps the id of each failed cell that has no scores to its last error message.
        tuned: maps (dataset, method) to the tuned settings.
        tried: maps (dataset, method) to the values that were tried for each setting, if the file contains them.
    """

    suite: Suite
    places: tuple[dict[str, Any], ...]
    cells: Mapping[str, Mapping[str, Any]]
    errors: Mapping[str, str]
    tuned: Mapping[tuple[str, str], tuple[str, ...]]
    tried: Mapping[tuple[str, str], Mapping[str, list[Any]]]

    def cell(self, data: str, method: str, sweep: Any, seed: int) -> Mapping[str, Any] | None:
        """Return the results of a cell, which are its "cell" line in the file, or None if the cell has no scores."""
        return self.cells.get(self.id(data, method, sweep, seed) or "")

    def id(self, data: str, method: str, sweep: Any, seed: int) -> str | None:
        """Return the id of a cell, or None if its dataset was not run."""
        return self._ids.get(_key(data, method, sweep, seed))

    @cached_property
    def _ids(self) -> dict[tuple[str, str, str, int], str]:
        return {
            _key(place["data"], place["method"], place["sweep"], place["seed"]): place["id"] for place in self.places
        }


def _key(data: str, method: str, sweep: Any, seed: int) -> tuple[str, str, str, int]:
    # convert the value of the sweep to JSON, because it may be a list, which is not hashable
    return data, method, json.dumps(sweep), seed


def read_lines(path: Path, *, kinds: tuple[str, ...] = KINDS) -> list[dict[str, Any]]:
    """Read the complete lines of a results file, and check that the `kind` of each line is one of `kinds`."""
    try:
        content, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from None
    lines = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            entry = json.loads(line)
            is_valid = entry["kind"] in kinds
        except (ValueError, TypeError, KeyError):
            is_valid = False
        if not is_valid and number == 1:
            raise NearfarError(f"{path}: not a results file (`nearfar bench run SUITE` writes results files)")
        if not is_valid:
            raise NearfarError(
                f"{path}: line {number} is damaged or its kind is not one of {', '.join(kinds)}: delete that line"
            )
        lines.append(entry)
    return lines


def read_results(path: Path) -> Results:
    """Read a results file. The suite may still be running."""
    lines = read_lines(path)
    last = next((line for line in reversed(lines) if line["kind"] == "suite"), None)
    if last is None:
        trials = sum(line["kind"] == "trial" for line in lines)
        if trials:
            raise NearfarError(
                f"{path}: there are only tuning trials ({trials:,}), no scores yet: run the suite until tuning ends"
            )
        raise NearfarError(f"{path}: contains no line of kind 'suite' (`nearfar bench run SUITE` writes results files)")
    cells = {line["id"]: line for line in lines if line["kind"] == "cell"}
    errors = {line["id"]: str(line["message"]) for line in lines if line["kind"] == "error" and line["id"] not in cells}
    tuned = {(choice["data"], choice["method"]): tuple(choice["settings"]) for choice in last.get("chosen", ())}
    tried = {(choice["data"], choice["method"]): choice.get("tried", {}) for choice in last.get("chosen", ())}
    return Results(suite_from_dict(last["suite"], str(path)), tuple(last["places"]), cells, errors, tuned, tried)


class ResultsFile:
    """A results file opened for appending. A lock ensures that only one process writes to it at a time."""

    def __init__(self, path: Path, *, kinds: tuple[str, ...] = KINDS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise NearfarError(f"{path}: cannot be written ({error.strerror}): check the path") from None
        self.path = path
        try:
            if not lock(self._fd, wait=False):
                raise NearfarError(
                    f"{path}: another process is writing to this file: wait until it ends or choose another --out"
                )
            self._drop_torn_line()
            self.lines = read_lines(path, kinds=kinds)
        except BaseException:
            os.close(self._fd)
            raise

    def _drop_torn_line(self) -> None:
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            os.ftruncate(self._fd, end)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append one line and sync it to disk."""
        line = (json.dumps(entry, allow_nan=False) + "\n").encode()
        try:
            if os.write(self._fd, line) < len(line):
                raise OSError(0, "the disk is full")
            os.fsync(self._fd)
        except OSError as error:
            raise NearfarError(f"{self.path}: cannot be written ({error.strerror}): check the disk") from None

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
