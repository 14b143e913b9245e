"""Parquet tables with a column of images (as bytes), texts or paths. Images are read when they are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.annotations import read_annotations
from nearfar.data.items import Items
from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.tables import COLUMNS, build_manifest, drop_missing, rename_columns
from nearfar.data.manifest import Manifest
from nearfar.data.taxonomy import add_levels
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

IMAGE = "image"
GROUPS_IN_MEMORY = 4  # number of row groups whose images stay in memory


def _is_parquet(path: Path) -> bool:
    return path.name.lower().endswith((".parquet", ".pq")) and path.is_file()


@register("parquet", recognizes=_is_parquet, order=SPECIFIC)
def open_parquet(
    path: Path,
    *,
    root: Path | None = None,
    allow_partial: bool = False,
    image: str | None = None,
    text: str | None = None,
    label: str | None = None,
    separator: str | None = None,
    group: str | None = None,
    camera: str | None = None,
    levels: Sequence[str] = (),
) -> Manifest:
    """Open a Parquet table with the columns of `open_csv`, or with a column of image files as bytes.

    Labels must be strings or integers. Floats are refused, because class ids must be exact. A column of images holds
    bytes, or objects {bytes, path} as Hugging Face datasets write them. Images are read one whole row group at a time.
    The sampler `stream` is therefore faster than a sampler that picks rows from the whole file.

    Args:
        path: The table.
        root, allow_partial, text, label, separator, group, camera, levels: See `open_csv`.
        image: Name of the column with images. The default is "image" if the table has such a column of bytes.
    """
    file = _open(path)
    types = {name: str(kind) for name, kind in zip(file.schema_arrow.names, file.schema_arrow.types, strict=True)}
    content = image or (IMAGE if text is None and "binary" in types.get(IMAGE, "") else None)
    if content is not None and "binary" not in types.get(content, ""):
        problem = f"has the type {types[content]}, not bytes" if content in types else "is missing"
        known = f"the table has {', '.join(types)}"
        raise NearfarError(f"{path}: the column {content!r} of images {problem} ({known}){suggest(content, types)}")
    for key, name in {"text": text, "label": label, "group": group, "camera": camera}.items():
        if name is not None and name not in types:
            known = f"it has {', '.join(types)}"
            raise NearfarError(f"{path} has no column {name!r} for data.{key} ({known}){suggest(name, types)}")
    wanted = {*COLUMNS, "text", text, label, group, camera, *levels}
    names = [name for name in types if name in wanted and name != content]
    columns = {name: _as_strings(path, name, _read_column(path, file, name)) for name in names}
    rows = file.metadata.num_rows
    if content is not None:
        columns.pop("text", None)
        columns["path"] = [f"row {row}" for row in range(rows)]
    columns = rename_columns(path, columns, text=text, label=label)
    columns, annotations = read_annotations(path, columns, separator=separator, group=group, camera=camera)
    manifest = replace(build_manifest(path, columns, range(rows), root=root), annotations=annotations)
    manifest = add_levels(manifest, path, columns, levels)
    if content is None:
        return drop_missing(manifest, path, allow_partial=allow_partial)
    items = Items(_Images(path, content), np.arange(rows), are_images=True, files=(path,))
    return replace(manifest, items=items, root=None)


def _open(path: Path) -> Any:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise NearfarError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow, or save it as CSV") from error
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pyarrow raises many types of exception
        raise NearfarError(f"{path} is not readable as Parquet ({error}): save it again") from error


def _read_column(path: Path, file: Any, name: str) -> list[Any]:
    try:
        values: list[Any] = file.read(columns=[name]).column(0).to_pylist()
    except Exception as error:  # pyarrow raises many types of exception
        raise NearfarError(f"{path} is not readable as Parquet ({error}): save it again") from error
    return values


def _as_strings(path: Path, name: str, values: list[Any]) -> list[str]:
    for row, value in enumerate(values):
        if not isinstance(value, str | int) or isinstance(value, bool):
            kind = type(value).__name__
            raise NearfarError(
                f"{path}, column {name}, row {row}: expected a string or an integer, got {kind} {value!r}"
            )
    return [str(value) for value in values]


class _Images:
    """The bytes of the images of a Parquet file, by row."""

    def __init__(self, path: Path, column: str) -> None:
        self.path, self.column = path, column
        metadata = _open(path).metadata
        self.ends = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, row: int) -> bytes:
        group = int(np.searchsorted(self.ends, row, side="right"))
        first = int(self.ends[group - 1]) if group else 0
        value = _read_group(self.path, os.stat(self.path).st_mtime_ns, self.column, group)[row - first].as_py()
        if isinstance(value, Mapping):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            kind = type(value).__name__
            raise NearfarError(f"{self.path}, column {self.column}, row {row}: expected bytes of an image, got {kind}")
        return value


@lru_cache(maxsize=GROUPS_IN_MEMORY)
def _read_group(path: Path, changed: int, column: str, group: int) -> Any:
    """Read the images of a row group.

    `changed` is the modification time of the file. It is part of the cache key, so that a changed file is read again.
    """
    try:
        return _open(path).read_row_group(group, columns=[column]).column(0)
    except Exception as error:  # pyarrow raises many types of exception
        raise NearfarError(f"{path} is not readable as Parquet ({error}): save it again") from error
