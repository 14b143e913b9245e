"""An index on disk: a folder of arrays and `index.json`, which lists them with their sha256.

index.json             format, version, kind, counts, classes, parts and files, and a sha256 of all these values
vectors.TOKEN.npy      float32 [N, dim], memory-mapped on load
ids.TOKEN.npy          int64 [N]
labels.TOKEN.npy       int64 [N], if the index has labels
names.TOKEN.json       a list of N strings
index.TOKEN.faiss      the faiss index, if the kind is approximate
slots.TOKEN.npy        int64: for each vector in the faiss index, its row in `vectors`, or -1 if it was removed. The
                       file exists only if vectors were removed.

TOKEN is a random string that differs for each save. A save writes new files next to the old ones, replaces index.json,
and then deletes the old files. The folder therefore holds one complete index at all times. A lock on the folder
excludes other writers. Readers take no lock: if index.json is replaced while they load its files, they start again.
Nothing is pickled, and no other file is parsed before its sha256 has been compared with that in index.json. This
detects damage, not attacks: anyone who can write to the folder can also write new checksums.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from nearfar.directory_lock import is_lock_file, lock_directory
from nearfar.errors import NearfarError
from nearfar.files import atomic, compute_sha256, is_draft, remove_drafts
from nearfar.search.approximate import APPROXIMATE, KINDS, ApproximateIndex
from nearfar.search.compressed import COMPRESSED, is_compressed_index
from nearfar.search.index import Index
from nearfar.search.part import Part

FORMAT, VERSION = "nearfar index", 1
INDEX_FILE = "index.json"
FILE_NAME = re.compile(
    r"(vectors|ids|labels|slots)\.[0-9a-f]{16}\.npy|names\.[0-9a-f]{16}\.json|index\.[0-9a-f]{16}\.faiss"
)
REBUILD = "build it again with `nearfar index`"


def lock(folder: Path, *, say: Callable[[str], object] | None = None) -> AbstractContextManager[None]:
    """Return a context manager that keeps other processes from writing the index.

    If another process is writing the index, wait until it has finished.

    Args:
        folder: The folder of the index.
        say: A function that is called with a message before waiting for another process.
    """
    remedy = "wait until it has finished"
    return lock_directory(folder, "index", state="is being written", remedy=remedy, wait=say or (lambda _: None))


def save(index: Index, folder: Path) -> None:
    """Write an index to a folder that does not exist, is empty, or holds an index."""
    with lock(folder):
        write(index, folder)


def write(index: Index, folder: Path) -> None:
    """Write an index as `save` does, to a folder that the caller has already locked."""
    if (
        folder.is_dir()
        and not (folder / INDEX_FILE).is_file()
        and any(not (_is_index_file(path) or is_lock_file(path) or is_draft(path)) for path in folder.iterdir())
    ):
        raise NearfarError(f"{folder} holds other files but no index: choose another folder")
    remove_drafts(folder)
    token = os.urandom(8).hex()
    files: dict[str, dict[str, str]] = {}

    def write_file(name: str, suffix: str, write_to: Callable[[Path], object]) -> None:
        path = folder / f"{name}.{token}.{suffix}"
        with atomic(path) as draft:
            write_to(draft)
        files[name] = {"name": path.name, "sha256": compute_sha256(path)}

    write_file("vectors", "npy", lambda path: _save_array(path, index.vectors))
    write_file("ids", "npy", lambda path: _save_array(path, index.ids))
    write_file("names", "json", lambda path: path.write_text(json.dumps(list(index.names)), encoding="ascii"))
    if index.labels is not None:
        labels = index.labels
        write_file("labels", "npy", lambda path: _save_array(path, labels))
    if index.approximate is not None:
        faiss_index, slots = index.approximate.faiss, index.approximate.slots
        write_file("index", "faiss", lambda path: faiss.write_index(faiss_index, str(path)))
        if slots is not None:
            write_file("slots", "npy", lambda path: _save_array(path, slots))
    header: dict[str, Any] = {
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
    with atomic(folder / INDEX_FILE) as draft:
        draft.write_text(json.dumps(header | {"sha256": _digest(header)}, indent=1) + "\n", encoding="ascii")
    current = {file["name"] for file in files.values()}
    for path in folder.iterdir():
        if _is_index_file(path) and path.name not in current:
            path.unlink(missing_ok=True)


def read_parts(folder: Path) -> tuple[Part, ...]:
    """Return the parts of a saved index, which describe the datasets of its samples, without loading the index."""
    try:
        return tuple(Part(**part) for part in _read_header(folder / INDEX_FILE)["parts"])
    except (KeyError, TypeError) as error:
        raise NearfarError(f"{folder / INDEX_FILE} is not a nearfar index ({error}): {REBUILD}") from error


def load(folder: Path, *, mmap: bool = True) -> Index:
    """Load an index that `save` wrote.

    Raises:
        NearfarError: If the index is missing or damaged, was not written by nearfar, or has another format version.
    """
    try:
        header = _read_header(folder / INDEX_FILE)
        while True:
            try:
                return _load(folder, header, mmap=mmap)
            except (NearfarError, OSError, RuntimeError):  # faiss raises RuntimeError if a file is missing
                current = _read_header(folder / INDEX_FILE)
                if current == header:
                    raise
                header = current  # another process has saved a new index and deleted the files of this one
    except OSError as error:
        raise NearfarError(f"{error.filename or folder} cannot be read ({error.strerror}): {REBUILD}") from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise NearfarError(f"{folder / INDEX_FILE} is not a nearfar index ({error}): {REBUILD}") from error


def _load(folder: Path, header: dict[str, Any], *, mmap: bool) -> Index:
    files = {name: folder / file["name"] for name, file in header["files"].items()}
    for name, file in header["files"].items():
        if not files[name].is_file():
            raise NearfarError(f"{files[name]} is missing: {REBUILD}")
        if compute_sha256(files[name]) != file["sha256"]:
            raise NearfarError(f"{files[name]} is damaged (its sha256 does not match {INDEX_FILE}): {REBUILD}")
    count, kind = header["count"], header["kind"]
    vectors = _load_array(files["vectors"], np.float32, (count, header["dim"]), mmap=mmap)
    ids = _load_array(files["ids"], np.int64, (count,))
    labels = _load_array(files["labels"], np.int64, (count,)) if "labels" in files else None
    slots = _load_array(files["slots"], np.int64, (None,)) if "slots" in files else None
    names = json.loads(files["names"].read_text(encoding="ascii"))
    if len(names) != count or (
        labels is not None and count and not 0 <= labels.min() <= labels.max() < len(header["classes"])
    ):
        raise NearfarError(f"{folder} does not have {count} names, or has a label without a class: {REBUILD}")
    approximate = None
    if kind in APPROXIMATE:
        faiss_index = _load_faiss(files["index"], kind, count if slots is None else len(slots))
        approximate = ApproximateIndex(kind, faiss_index, header["effort"], slots)
    return Index(
        vectors,
        ids,
        labels,
        tuple(header["classes"]),
        names,
        kind=kind,
        approximate=approximate,
        parts=tuple(Part(**part) for part in header["parts"]),
        model=header["model"],
    )


def _read_header(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise NearfarError(f"{path.parent} is not an index: {INDEX_FILE} is missing (`nearfar index` builds one)")
    try:
        header = json.loads(path.read_bytes())
    except OSError as error:
        raise NearfarError(f"{path} cannot be read ({error.strerror}): check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise NearfarError(f"{path} is damaged: not valid JSON ({error}): {REBUILD}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise NearfarError(f"{path} is not a nearfar index, or is damaged: {REBUILD}")
    if header.get("version") != VERSION:
        versions = f"version {header.get('version')!r}, but this nearfar reads version {VERSION}"
        raise NearfarError(f"{path} has {versions}: update nearfar, or {REBUILD}")
    if header.pop("sha256", None) != _digest(header):
        raise NearfarError(f"{path} is damaged or was edited (its sha256 does not match): {REBUILD}")
    required = {"vectors", "ids", "names"} | ({"index"} if header["kind"] in APPROXIMATE else set())
    names_are_valid = all(FILE_NAME.fullmatch(file["name"]) for file in header["files"].values())
    if header["kind"] not in KINDS or not required <= set(header["files"]) or not names_are_valid:
        raise NearfarError(f"{path} is not a nearfar index: {REBUILD}")
    return header


def _digest(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode("ascii")).hexdigest()


def _is_index_file(path: Path) -> bool:
    return FILE_NAME.fullmatch(path.name) is not None


def _save_array(path: Path, array: NDArray[Any]) -> None:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)


def _load_array(path: Path, dtype: Any, shape: tuple[int | None, ...], *, mmap: bool = False) -> NDArray[Any]:
    try:
        # An empty array cannot be memory-mapped.
        array = np.load(path, mmap_mode="r" if mmap and 0 not in shape else None, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise NearfarError(f"{path} cannot be read as an array without unpickling ({error}): {REBUILD}") from None
    shape_matches = len(array.shape) == len(shape) and all(
        expected in (None, size) for size, expected in zip(array.shape, shape, strict=True)
    )
    if array.dtype != dtype or not shape_matches:
        raise NearfarError(
            f"{path} contains {array.dtype} of shape {list(array.shape)}, which does not match {INDEX_FILE}: {REBUILD}"
        )
    return np.asarray(array)


def _load_faiss(path: Path, kind: str, rows: int) -> Any:
    index = faiss.read_index(str(path))
    if kind in COMPRESSED:
        is_expected = is_compressed_index(index, kind)
    else:
        is_expected = isinstance(index, faiss.IndexHNSWFlat if kind == "hnsw" else faiss.IndexIVFPQ)
    if not is_expected or index.ntotal != rows:
        raise NearfarError(f"{path} does not contain the expected {kind} index of {rows} vectors: {REBUILD}")
    return index
