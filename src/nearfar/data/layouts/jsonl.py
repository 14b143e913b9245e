"""JSON Lines: one JSON object per line with a key path or text, a key label, and optionally the keys split and role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearfar.csv_files import read_text
from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.tables import COLUMNS, build_manifest, drop_missing, rename_columns
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

KINDS: dict[type, str] = {str: "a string", int: "a whole number"}


def _is_jsonl(path: Path) -> bool:
    return path.name.lower().endswith((".jsonl", ".ndjson")) and path.is_file()


@register("jsonl", recognizes=_is_jsonl, order=SPECIFIC)
def open_jsonl(
    path: Path,
    *,
    root: Path | None = None,
    allow_partial: bool = False,
    text: str | None = None,
    label: str | None = None,
) -> Manifest:
    """Open a file with one JSON object per line as a manifest.

    Texts and paths must be strings. Labels must be all strings or all integers. Other keys and empty lines are ignored.
    `nearfar.data.layouts.tables.open_csv` describes the arguments.
    """
    lines = [(n, line) for n, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]
    if not lines:
        raise NearfarError(f'{path} is empty: expected lines like {{"text": "...", "label": "..."}}')
    records = [(number, _parse(path, number, line)) for number, line in lines]
    keys = set(records[0][1])
    chosen = {"text": text or "text", "label": label or "label"}
    names = {key: chosen.get(key, key) for key in (*COLUMNS, "text")}
    if text is not None or ("text" in keys and "path" not in keys):
        names.pop("path")
    columns: dict[str, list[str]] = {}
    for key, name in names.items():
        if name in keys:
            types = (str, int) if key == "label" else (str,)
            columns[name] = _column(path, records, name, types)
    for column in (text, label):
        if column is not None and column not in keys:
            known = ", ".join(sorted(keys))
            raise NearfarError(f"{path} has no key {column!r} (the first line has {known}){suggest(column, keys)}")
    columns = rename_columns(path, columns or {key: [] for key in sorted(keys)}, text=text, label=label)
    numbers = [number for number, _ in records]
    return drop_missing(build_manifest(path, columns, numbers, root=root), path, allow_partial=allow_partial)


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NearfarError(f"{path}, line {number}: not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise NearfarError(f"{path}, line {number}: expected a JSON object, got {type(record).__name__}")
    return record


def _column(path: Path, records: list[tuple[int, dict[str, Any]]], name: str, types: tuple[type, ...]) -> list[str]:
    """Return the values of a key as strings. All values must have the same type, which is one of `types`."""
    values: list[str] = []
    first: tuple[int, type] | None = None
    for number, record in records:
        if name not in record:
            raise NearfarError(f"{path}, line {number}: there is no key {name!r}{suggest(name, record)}")
        kind = type(record[name])
        if kind not in types:
            wanted = " or ".join(KINDS[each] for each in types)
            raise NearfarError(f"{path}, line {number}: {name!r} must be {wanted}, got {json.dumps(record[name])}")
        first = first or (number, kind)
        if kind is not first[1]:
            raise NearfarError(
                f"{path}, line {number}: {name!r} is {KINDS[kind]}, but in line {first[0]} it is {KINDS[first[1]]}: "
                "use one type for all lines"
            )
        values.append(str(record[name]))
    return values
