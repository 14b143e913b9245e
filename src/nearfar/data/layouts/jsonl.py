"""JSON Lines: one JSON object per line.

An object has a key `path` or `text`, a key `label`, and optionally the keys `split` and `role`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearfar.csv_files import read_text
from nearfar.data.annotations import read_annotations
from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.tables import COLUMNS, build_manifest, drop_missing, rename_columns
from nearfar.data.manifest import Manifest
from nearfar.data.taxonomy import add_levels
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

KINDS: dict[type, str] = {str: "a string", int: "a whole number", list: "a list of strings"}
UNIT = "\x1f"  # the "unit separator" of ASCII, which joins the labels of a list and does not occur in names


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
    separator: str | None = None,
    group: str | None = None,
    camera: str | None = None,
    levels: Sequence[str] = (),
) -> Manifest:
    """Open a file with one JSON object per line as a manifest.

    Texts and paths must be strings. Labels must be all strings, all integers, or all lists of strings for samples with
    several labels. Other keys and empty lines are ignored. `nearfar.data.layouts.tables.open_csv` describes the
    arguments.
    """
    lines = [(n, line) for n, line in enumerate(read_text(path).split("\n"), start=1) if line.strip()]
    if not lines:
        raise NearfarError(f'{path} is empty: expected lines like {{"text": "...", "label": "..."}}')
    records = [(number, _parse(path, number, line)) for number, line in lines]
    keys = set(records[0][1])
    named = {"text": text, "label": label, "group": group, "camera": camera}
    for key, name in (*named.items(), *(("levels", name) for name in levels)):
        if name is not None and name not in keys:
            known = ", ".join(sorted(keys))
            raise NearfarError(
                f"{path} has no key {name!r} for data.{key} (the first line has {known}){suggest(name, keys)}"
            )
    labels = label or "label"
    types: dict[str, tuple[type, ...]] = dict.fromkeys((*COLUMNS, text or "text"), (str,))
    if text is not None or ("text" in keys and "path" not in keys):
        types.pop("path")
    types |= {name: (str, int) for name in (group, camera, *levels) if name is not None}
    types[labels] = (str, int, list)
    columns = {name: _column(path, records, name, kinds) for name, kinds in types.items() if name in keys}
    if labels in keys and isinstance(records[0][1][labels], list):
        if separator is not None:
            raise NearfarError(f"{path}: {labels!r} holds lists of labels, which need no data.separator: remove it")
        separator = UNIT
    columns = rename_columns(path, columns or {key: [] for key in sorted(keys)}, text=text, label=label)
    columns, annotations = read_annotations(path, columns, separator=separator, group=group, camera=camera)
    manifest = build_manifest(path, columns, [number for number, _ in records], root=root)
    manifest = add_levels(replace(manifest, annotations=annotations), path, columns, levels)
    return drop_missing(manifest, path, allow_partial=allow_partial)


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
        value = record[name]
        kind = type(value)
        is_list_of_others = kind is list and not all(isinstance(part, str) and UNIT not in part for part in value)
        if kind not in types or is_list_of_others:
            *others, last = (KINDS[each] for each in types)
            wanted = f"{', '.join(others)} or {last}" if others else last
            raise NearfarError(f"{path}, line {number}: {name!r} must be {wanted}, got {json.dumps(value)}")
        first = first or (number, kind)
        if kind is not first[1]:
            raise NearfarError(
                f"{path}, line {number}: {name!r} is {KINDS[kind]}, but in line {first[0]} it is {KINDS[first[1]]}: "
                "use one type for all lines"
            )
        values.append(UNIT.join(value) if kind is list else str(value))
    return values
