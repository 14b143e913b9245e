"""The results of a suite: a JSON object a line, appended as cells finish, so that a kill costs the cells under way.

    {"kind": "suite", "suite": ..., "places": [{data, method, sweep, seed, id}, ...]}   asked for; the last counts
    {"kind": "trial", "id": ..., "settings": [...], "value": ...}                       validation score, for tuning
    {"kind": "cell", "id": ..., "test": {...}, "untrained": {...}, ...}                 scores of a cell
    {"kind": "error", "id": ..., "message": ...}                                        why there are none

A last line that a kill cut off has no end and does not count.
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
from nearfar.suites.suite import Suite, suite_from_dict

try:
    import fcntl
except ImportError:  # Windows: two runs on one file are the user's to avoid
    fcntl = None  # type: ignore[assignment]

KINDS = ("suite", "trial", "cell", "error")


@dataclass(frozen=True)
class Results:
    """What a file holds: the suite, its places, cells by id, the last error of those that have none, and the settings
    that tuning chose, by data and method."""

    suite: Suite
    places: tuple[dict[str, Any], ...]
    cells: Mapping[str, Mapping[str, Any]]
    errors: Mapping[str, str]
    chosen: Mapping[tuple[str, str], tuple[str, ...]]

    def cell(self, data: str, method: str, sweep: Any, seed: int) -> Mapping[str, Any] | None:
        """The scores for a place, if there are any."""
        return self.cells.get(self.id(data, method, sweep, seed) or "")

    def id(self, data: str, method: str, sweep: Any, seed: int) -> str | None:
        """The cell of a place; none for data that was left out."""
        return self._ids.get(_place(data, method, sweep, seed))

    @cached_property
    def _ids(self) -> dict[tuple[str, str, str, int], str]:
        return {_place(each["data"], each["method"], each["sweep"], each["seed"]): each["id"] for each in self.places}


def _place(data: str, method: str, sweep: Any, seed: int) -> tuple[str, str, str, int]:
    return data, method, json.dumps(sweep), seed  # a value may be a list


def read_lines(path: Path, *, kinds: tuple[str, ...] = KINDS) -> list[dict[str, Any]]:
    """The whole lines of a results file, each of one of these kinds."""
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror})") from None
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            entry = json.loads(line)
            known = entry["kind"] in kinds
        except (ValueError, TypeError, KeyError):
            known = False
        if not known and number == 1:
            raise NearfarError(f"{path}: is no file of results (nearfar bench run SUITE makes such files)")
        if not known:
            raise NearfarError(f"{path}: line {number} is damaged or none of {', '.join(kinds)}: delete that line")
        lines.append(entry)
    return lines


def read_results(path: Path) -> Results:
    """The results as they stand."""
    lines = read_lines(path)
    asked = next((line for line in reversed(lines) if line["kind"] == "suite"), None)
    if asked is None:
        trials = sum(line["kind"] == "trial" for line in lines)
        if trials:
            raise NearfarError(f"{path}: is still being tuned, {trials:,} trials are done and no cell: run it on")
        raise NearfarError(f"{path}: holds no suite (nearfar bench run SUITE makes such files)")
    cells = {line["id"]: line for line in lines if line["kind"] == "cell"}
    errors = {line["id"]: str(line["message"]) for line in lines if line["kind"] == "error" and line["id"] not in cells}
    chosen = {(each["data"], each["method"]): tuple(each["settings"]) for each in asked.get("chosen", ())}
    return Results(suite_from_dict(asked["suite"], str(path)), tuple(asked["places"]), cells, errors, chosen)


class ResultsFile:
    """A results file open to append to, by one run at a time."""

    def __init__(self, path: Path, *, kinds: tuple[str, ...] = KINDS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise NearfarError(f"{path}: cannot be written ({error.strerror})") from None
        self.path = path
        try:
            if fcntl is not None:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._drop_torn_line()
            self.lines = read_lines(path, kinds=kinds)
        except BlockingIOError:
            os.close(self._fd)
            raise NearfarError(f"{path}: another run is writing to it, wait for it or choose another --out") from None
        except BaseException:
            os.close(self._fd)
            raise

    def _drop_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._fd, whole)

    def append(self, entry: Mapping[str, Any]) -> None:
        """One line, on the disk when this returns."""
        line = (json.dumps(entry, allow_nan=False) + "\n").encode()
        try:
            if os.write(self._fd, line) < len(line):
                raise OSError(0, "the disk is full")
            os.fsync(self._fd)
        except OSError as error:
            raise NearfarError(f"{self.path}: cannot be written ({error.strerror})") from None

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
