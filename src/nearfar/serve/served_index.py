"""The index of a server. It is on disk and memory-mapped, so that all processes share one copy of the vectors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.search import Index
from nearfar.search.part import Part
from nearfar.search.storage import INDEX_FILE
from nearfar.serve.disk_cache import lock_cached


def open_served_index(folder: Path, key: Mapping[str, Any], build: Callable[[], Index]) -> Index:
    """Return the index in a folder. If it is missing, damaged or has another key, build and save it.

    Without write permission for the folder, the index is built in memory and not saved.

    Args:
        folder: The folder of the index.
        key: Everything that the index depends on, as plain values.
        build: A function that builds the index.
    """
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    index = _load(folder, digest)
    if index is not None:
        return index
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(existing, os.W_OK):
        return build()
    with lock_cached(folder):
        index = _load(folder, digest)
        if index is None:
            built = build()
            built.parts = (Part("", 0, len(built), digest),)
            built.save(folder)
            index = Index.load(folder)
    return index


def _load(folder: Path, digest: str) -> Index | None:
    if not (folder / INDEX_FILE).is_file():
        return None
    try:
        index = Index.load(folder)
    except NearfarError:
        return None
    return index if [part.fingerprint for part in index.parts] == [digest] else None
