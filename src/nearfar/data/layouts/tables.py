"""CSV tables with a column `path` or `text`, a column `label`, and optionally the columns `split` and `role`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.csv_files import parse_csv, read_text, write_csv
from nearfar.data.annotations import read_annotations
from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.archive import is_archive, load_archive
from nearfar.data.layouts.paths import find_missing
from nearfar.data.layouts.text_checks import check_texts
from nearfar.data.manifest import ROLES, SPLITS, Manifest, number_labels
from nearfar.data.taxonomy import add_levels
from nearfar.errors import NearfarError
from nearfar.spelling import suggest

COLUMNS = ("path", "label", "split", "role")
MARK = "# nearfar manifest 1: "


def _is_csv(path: Path) -> bool:
    return path.name.lower().endswith((".csv", ".tsv")) and path.is_file()


@register("csv", recognizes=_is_csv, order=SPECIFIC)
def open_csv(
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
    """Open a table with a header row.

    The columns are `path` or `text`, `label`, and optionally `split` and `role`. Other columns are ignored. The samples
    are texts if there is a column `text` and no column `path`. The cells of a .tsv file are separated by tabs. Labels
    are read as strings, so 007 and 7 are different classes. `nearfar.csv_files` describes how names with special
    characters are written.

    A split is train, val or test. Without a column `split`, the first half of the classes is for training and the other
    half for testing. A role is query or gallery, for benchmarks that search with separate queries.

    Args:
        path: The table.
        root: Folder or archive (tar or zip) that the paths are relative to. The default is the folder of the table. For
            a table that `save_csv` wrote, it is the root that the first line of the table names.
        allow_partial: If True, listed files that do not exist are skipped and counted in a note. Otherwise they raise
            an error.
        text: Name of the column with texts. The default is "text" if there is no column "path".
        label: Name of the column with labels, by default "label".
        separator: Character between the labels of a row, such as "|". The first label of a row is its class.
        group: Name of a column with groups. The results of a query exclude samples of its own group.
        camera: Name of a column with cameras. The results of a query exclude samples that have both its class and its
            camera.
        levels: Names of the columns with the ancestors of the class, from the parent to the root.
    """
    content = read_text(path)
    header: dict[str, Any] = {}
    first, _, rest = content.partition("\n")
    if first.startswith(MARK):
        try:
            header, content = _parse_header(first.removeprefix(MARK)), rest
        except ValueError as error:
            raise NearfarError(
                f"{path}, line 1: the header written by nearfar is damaged ({error}): remove this line"
            ) from error
    skipped = 1 if header else 0
    table = parse_csv(content, path, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    if not table:
        raise NearfarError(f"{path} is empty: expected the columns path,label or text,label")
    names = [name.strip() for name in table[0]]
    rows = [(number, row) for number, row in enumerate(table[1:], start=2 + skipped) if row]
    for number, row in rows:
        if len(row) != len(names):
            raise NearfarError(
                f"{path}, row {number}: {len(row)} cells but {len(names)} columns: add missing cells, or quote a cell "
                "that contains the separator"
            )
    columns = {name: [row[i] for _, row in rows] for i, name in enumerate(names)}
    columns = rename_columns(path, columns, text=text, label=label)
    columns, annotations = read_annotations(path, columns, separator=separator, group=group, camera=camera)
    manifest = build_manifest(path, columns, [number for number, _ in rows], root=root, header=header)
    manifest = add_levels(replace(manifest, annotations=annotations), path, columns, levels)
    return drop_missing(manifest, path, allow_partial=allow_partial)


def _parse_header(text: str) -> dict[str, Any]:
    """Parse the JSON in the first line of a file that `save_csv` wrote."""
    try:
        header = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(header, dict):
        raise ValueError(f"expected a JSON object, got {type(header).__name__}")
    for key in ("source", "root", "fingerprint"):
        if not isinstance(header.get(key, ""), str):
            raise ValueError(f"{key} must be a string, got {header[key]!r}")
    for key in ("classes", "notes"):
        words = header.get(key, [])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{key} must be a list of strings, got {words!r}")
    if len(set(header.get("classes", ()))) != len(header.get("classes", ())):
        raise ValueError("classes must be distinct names")
    return header


def rename_columns(
    path: Path, columns: Mapping[str, list[str]], *, text: str | None, label: str | None
) -> dict[str, list[str]]:
    """Return the columns. Those named by `text` and `label` are also returned under the names "text" and "label".

    If `text` is given, the column "path" is dropped, because the samples are the texts.

    Raises:
        NearfarError: If a named column does not exist.
    """
    renamed = dict(columns)
    for key, name in (("text", text), ("label", label)):
        if name is not None:
            if name not in columns:
                raise NearfarError(
                    f"{path} has no column {name!r} for data.{key} (it has {', '.join(columns)})"
                    f"{suggest(name, columns)}"
                )
            renamed[key] = columns[name]
    if text is not None:
        renamed.pop("path", None)
    return renamed


def build_manifest(
    path: Path,
    columns: Mapping[str, list[str]],
    numbers: Sequence[int],
    *,
    root: Path | None = None,
    header: Mapping[str, Any] | None = None,
) -> Manifest:
    """Build the manifest of a table from its columns.

    Args:
        path: The table.
        columns: The cells of each column. The samples are texts if there is a column `text` and no column
            `path`.
        numbers: The number of each row in the file, for messages.
        root: Folder or archive that paths are relative to. By default, the root in `header`, or the folder of the table
            if `header` has none.
        header: The JSON in the first line of a table that `save_csv` wrote, or None for other tables.
    """
    header = header or {}
    content = "text" if "text" in columns and "path" not in columns else "path"
    for name in (content, "label"):
        if name not in columns:
            similar = suggest(name, columns)
            if similar == ".":
                similar = ": " + ("for texts, set data.text to their column" if name == "path" else "set data.label")
            raise NearfarError(f"{path} has no column {name!r} (it has {', '.join(columns)}){similar}")
    if not columns[content]:
        raise NearfarError(f"{path} has a header but no rows")
    for name in (content, "label"):
        empty = next((number for number, cell in zip(numbers, columns[name], strict=True) if not cell), None)
        if empty is not None:
            raise NearfarError(f"{path}, row {empty}: the {name} is empty")
    for name, allowed in (("split", SPLITS), ("role", ROLES)):
        for number, cell in zip(numbers, columns.get(name, ()), strict=False):
            if cell not in allowed:
                choices = ", ".join(word for word in allowed if word)
                similar = suggest(cell, allowed)
                raise NearfarError(f"{path}, row {number}: {name} must be one of {choices}, got {cell!r}{similar}")
    classes = header.get("classes")
    if classes is not None and not set(columns["label"]) <= set(classes):
        classes = None  # the table was edited and has new labels, so the saved order of the classes does not apply
    labels, order = number_labels(columns["label"], classes)
    if content == "text":
        check_texts(path, columns["text"], numbers)
    elif root is None:
        root = path.parent / header["root"] if "root" in header else path.parent
    manifest = Manifest(
        labels=labels,
        classes=order,
        split=np.array(columns.get("split") or ["train"] * len(labels)),
        role=np.array(columns["role"]) if "role" in columns else None,
        paths=tuple(columns["path"]) if content == "path" else None,
        texts=tuple(columns["text"]) if content == "text" else None,
        root=None if root is None or content == "text" else Path(os.path.normpath(root)),
        source=header.get("source", path.name),
        notes=tuple(header.get("notes", ())),
    )
    if "split" not in columns:
        manifest = manifest.split_by_class_order()
    if "fingerprint" in header and header["fingerprint"] != manifest.fingerprint:
        manifest = replace(manifest, notes=(*manifest.notes, f"{path.name} was edited after nearfar saved it"))
    return manifest


def drop_missing(manifest: Manifest, table: Path, *, allow_partial: bool) -> Manifest:
    """Return the manifest. If listed files do not exist, raise an error or, with `allow_partial`, leave them out."""
    if manifest.kind == "text":
        return manifest
    paths, root = manifest.paths or (), manifest.root or table.parent
    if is_archive(root):
        members = load_archive(root, allow_partial=allow_partial).members
        absent = [path for path in paths if path not in members]
    else:
        absent = find_missing(root, paths)
    if not absent:
        return manifest
    what = f"{len(absent):,} of {len(paths):,} listed files do not exist below {root}, the first: {absent[0]}"
    if not allow_partial:
        raise NearfarError(f"{table}: {what}: set root (data.root) to the folder of the files, or set allow_partial")
    if len(absent) == len(paths):
        raise NearfarError(f"{table}: {what}: set root (data.root) to the folder of the files")
    dropped = frozenset(absent)
    existing = manifest.subset(np.array([path not in dropped for path in paths]))
    return replace(existing, notes=(*existing.notes, what))


def save_csv(manifest: Manifest, path: Path) -> None:
    """Save a manifest of files or texts as a table with the columns `path` or `text`, `label`, `split` and `role`.

    The column `role` is left out if the manifest has no roles.

    The first line is a comment with JSON: source, root (relative to the table if possible), notes, fingerprint, and the
    classes if their order is not that of `sort_classes`. To read the table with pandas, pass comment="#". The file is
    replaced atomically.
    """
    if manifest.annotations is not None:
        raise NearfarError(
            f"{path}: label sets, groups, cameras, levels and pairs cannot be saved: edit the original table instead"
        )
    if manifest.items is not None:
        raise NearfarError(f"{path}: the samples of {manifest.source} are not files, so a table cannot refer to them")
    samples = manifest.texts if manifest.kind == "text" else manifest.paths
    if manifest.kind not in ("files", "text") or samples is None:
        raise NearfarError(f"{path}: a manifest of {manifest.kind} has no paths: save it as .npz")
    names = [manifest.classes[label] for label in manifest.labels.tolist()]
    header: dict[str, Any] = {"source": manifest.source, "fingerprint": manifest.fingerprint}
    if manifest.root is not None:
        header["root"] = _relative(manifest.root, path.parent)
    if manifest.notes:
        header["notes"] = list(manifest.notes)
    if number_labels(names)[1] != manifest.classes:
        header["classes"] = list(manifest.classes)
    roles = None if manifest.role is None else manifest.role.tolist()
    columns = [samples, names, manifest.split.tolist(), *([] if roles is None else [roles])]
    titles = ("text" if manifest.kind == "text" else "path", *COLUMNS[1 : len(columns)])
    rows = [titles, *zip(*columns, strict=True)]
    write_csv(path, rows, comment=MARK + json.dumps(header, ensure_ascii=True))


def _relative(root: Path, folder: Path) -> str:
    try:
        return os.path.relpath(root, folder)
    except ValueError:  # the paths are on different Windows drives
        return str(root.resolve())
