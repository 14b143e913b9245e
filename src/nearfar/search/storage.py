"""An index on disk: a folder of arrays, and `index.json`, which names them with their sha256.

index.json             format, version, kind, counts, classes, parts, files; and a sha256 of all that
vectors.TOKEN.npy      [N, dim] float32, mapped when it is loaded
ids.TOKEN.npy          [N] int64
labels.TOKEN.npy       [N] int64, where there are labels
names.TOKEN.json       a list of N strings
index.TOKEN.faiss      where the kind is approximate, and then
slots.TOKEN.npy        the rows of the faiss index, where some were removed

Every save writes new files beside the old ones and then replaces index.json, so that the folder holds one whole index
at every moment, also when it is written over while another process has it mapped. Nothing is pickled, and no file is
parsed before its sha256 is that of index.json. That finds damage, not malice: who can write to the folder can also
write new checksums.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from nearfar.data.digest import sha256_of
from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.search.approximate import APPROXIMATE, KINDS, Approximate
from nearfar.search.index import Index, Part

FORMAT, VERSION = "nearfar index", 1
MAIN = "index.json"
OWN = re.compile(r"(vectors|ids|labels|slots)\.[0-9a-f]{16}\.npy|names\.[0-9a-f]{16}\.json|index\.[0-9a-f]{16}\.faiss")
AGAIN = "build it again with `nearfar index`"


def save(index: Index, folder: Path) -> None:
    """Write an index into a folder that is new, empty or holds one already."""
    if folder.is_dir() and not (folder / MAIN).is_file() and any(not _is_own(path) for path in folder.iterdir()):
        raise NearfarError(f"{folder}: holds other files and no index: choose another folder")
    token = os.urandom(8).hex()
    files: dict[str, dict[str, str]] = {}

    def write(name: str, ending: str, content: Callable[[Path], object]) -> None:
        path = folder / f"{name}.{token}.{ending}"
        with atomic(path) as draft:
            content(draft)
        files[name] = {"name": path.name, "sha256": sha256_of(path)}

    write("vectors", "npy", lambda path: _save_array(path, index.vectors))
    write("ids", "npy", lambda path: _save_array(path, index.ids))
    write("names", "json", lambda path: path.write_text(json.dumps(list(index.names)), encoding="ascii"))
    if index.labels is not None:
        labels = index.labels
        write("labels", "npy", lambda path: _save_array(path, labels))
    if index.approximate is not None:
        graph = index.approximate.faiss
        write("index", "faiss", lambda path: faiss.write_index(graph, str(path)))
    if index.slots is not None:
        slots = index.slots
        write("slots", "npy", lambda path: _save_array(path, slots))
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "kind": index.kind,
        "metric": index.metric,
        "count": len(index),
        "dim": index.dim,
        "effort": None if index.approximate is None else index.approximate.effort,
        "model": index.model,
        "classes": list(index.classes),
        "parts": [asdict(part) for part in index.parts],
        "files": files,
    }
    with atomic(folder / MAIN) as draft:
        draft.write_text(json.dumps(about | {"sha256": _digest(about)}, indent=1) + "\n", encoding="ascii")
    current = {file["name"] for file in files.values()}
    for path in folder.iterdir():
        if _is_own(path) and path.name not in current:
            path.unlink(missing_ok=True)


def load(folder: Path, *, mmap: bool = True) -> Index:
    """The index that `save` wrote; what is damaged, foreign or of a newer version is a NearfarError."""
    try:
        return _load(folder, mmap=mmap)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise NearfarError(f"{folder / MAIN}: is no index that nearfar wrote ({error}): {AGAIN}") from error


def _load(folder: Path, *, mmap: bool) -> Index:
    about = _about(folder / MAIN)
    files = {name: folder / file["name"] for name, file in about["files"].items()}
    for name, file in about["files"].items():
        if not files[name].is_file():
            raise NearfarError(f"{files[name]}: is missing: {AGAIN}")
        if sha256_of(files[name]) != file["sha256"]:
            raise NearfarError(f"{files[name]}: is damaged, its sha256 is not that of {MAIN}: {AGAIN}")
    count, kind = about["count"], about["kind"]
    vectors = _load_array(files["vectors"], np.float32, (count, about["dim"]), mmap=mmap)
    ids = _load_array(files["ids"], np.int64, (count,))
    labels = _load_array(files["labels"], np.int64, (count,)) if "labels" in files else None
    slots = _load_array(files["slots"], np.int64, (None,)) if "slots" in files else None
    names = json.loads(files["names"].read_text(encoding="ascii"))
    if len(names) != count or (
        labels is not None and count and not 0 <= labels.min() <= labels.max() < len(about["classes"])
    ):
        raise NearfarError(f"{folder}: its names or labels are not of {count} vectors: {AGAIN}")
    approximate = None
    if kind in APPROXIMATE:
        approximate = Approximate(
            kind, _load_faiss(files["index"], kind, count if slots is None else len(slots)), about["effort"]
        )
    return Index(
        vectors,
        ids,
        labels,
        tuple(about["classes"]),
        names,
        kind=kind,
        approximate=approximate,
        slots=slots,
        parts=tuple(Part(**part) for part in about["parts"]),
        model=about["model"],
    )


def _about(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise NearfarError(f"{path.parent}: is no index, there is no {MAIN} in it (nearfar index makes one)")
    try:
        about = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise NearfarError(f"{path}: is damaged, it is no JSON ({error}): {AGAIN}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise NearfarError(f"{path}: is no index of nearfar, or damaged: {AGAIN}")
    if about.get("version") != VERSION:
        known = f"version {about.get('version')!r}, this nearfar reads {VERSION}"
        raise NearfarError(f"{path}: has {known}: update nearfar, or {AGAIN}")
    if about.pop("sha256", None) != _digest(about):
        raise NearfarError(f"{path}: is damaged or was edited, its sha256 differs: {AGAIN}")
    needed = {"vectors", "ids", "names"} | ({"index"} if about["kind"] in APPROXIMATE else set())
    named = all(OWN.fullmatch(file["name"]) for file in about["files"].values())
    if about["kind"] not in KINDS or not needed <= set(about["files"]) or not named:
        raise NearfarError(f"{path}: is no index that nearfar wrote: {AGAIN}")
    return about


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode("ascii")).hexdigest()


def _is_own(path: Path) -> bool:
    return OWN.fullmatch(path.name) is not None


def _save_array(path: Path, array: NDArray[Any]) -> None:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)


def _load_array(path: Path, dtype: Any, shape: tuple[int | None, ...], *, mmap: bool = False) -> NDArray[Any]:
    try:
        # an empty file cannot be mapped
        array = np.load(path, mmap_mode="r" if mmap and 0 not in shape else None, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise NearfarError(f"{path}: is no array that can be read safely ({error}): {AGAIN}") from None
    fits = len(array.shape) == len(shape) and all(b in (None, a) for a, b in zip(array.shape, shape, strict=True))
    if array.dtype != dtype or not fits:
        raise NearfarError(f"{path}: holds {array.dtype} {list(array.shape)}, not what {MAIN} says: {AGAIN}")
    return np.asarray(array)


def _load_faiss(path: Path, kind: str, rows: int) -> Any:
    index = faiss.read_index(str(path))
    wanted = faiss.IndexHNSWFlat if kind == "hnsw" else faiss.IndexIVFPQ
    if not isinstance(index, wanted) or index.ntotal != rows:
        raise NearfarError(f"{path}: is no {kind} index of {rows} rows: {AGAIN}")
    return index
