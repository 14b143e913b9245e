"""Store rows of equal shape on disk, in shards that are written once.

A store is a folder:

    about.json     description of the rows
    00000.rows     the rows of the first shard, then the SHA-256 of these bytes
    use.lock       locked (shared) by every process that uses the store; its modification time is the time of last use
    build.lock     locked by the process that writes shards

A shard is written atomically. After a crash, complete shards are kept and the missing ones are written. Rows are read
with file reads instead of a memory map, because mapped pages count toward the memory of the process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from nearfar.data.manifest import Array
from nearfar.errors import NearfarError
from nearfar.files import atomic, lock, remove_drafts

ABOUT, USE, BUILD = "about.json", "use.lock", "build.lock"
SHARD_BYTES = 1 << 22  # small, because an interrupted process loses the shard that it was computing
DIGEST_BYTES = hashlib.sha256().digest_size
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class RowLayout:
    """Number, shape and dtype of the rows of a store.

    >>> layout = RowLayout(1000, (80, 14, 14), "float16")
    >>> layout.row_bytes, layout.rows_per_shard, layout.shards, layout.shard(1)
    (31360, 133, 8, range(133, 266))
    """

    rows: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def rows_per_shard(self) -> int:
        """Number of rows in every shard but the last."""
        return max(1, SHARD_BYTES // max(1, self.row_bytes))

    @property
    def shards(self) -> int:
        """Number of shards."""
        return -(-self.rows // self.rows_per_shard)

    @property
    def size(self) -> int:
        """Size of the complete store in bytes."""
        return self.rows * self.row_bytes + self.shards * DIGEST_BYTES

    def shard(self, number: int) -> range:
        """Return the numbers of the rows in a shard."""
        return range(number * self.rows_per_shard, min((number + 1) * self.rows_per_shard, self.rows))


class RowStore:
    """An open store. Other processes can read and extend it at the same time, but not remove it."""

    def __init__(self, folder: Path, layout: RowLayout, about: Mapping[str, Any]) -> None:
        """Open a store, or create an empty one.

        Args:
            folder: Folder of the store.
            layout: The rows that the store has when it is complete.
            about: Description of the rows, which `list_stores` returns.
        """
        self.folder, self.layout = folder, layout
        try:
            handle = _hold(folder)
        except OSError as error:
            raise NearfarError(f"{folder} cannot be written ({error.strerror}): check the path") from error
        weakref.finalize(self, os.close, handle)
        self._about = {**about, "rows": layout.rows, "shape": list(layout.shape), "bytes": layout.size}

    def find_missing(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the absent shards, and the numbers of the damaged shards. The whole store is read."""
        absent, damaged = [], []
        for number in range(self.layout.shards):
            path = self._path(number)
            if not path.is_file():
                absent.append(number)
            elif not self._is_intact(number):
                damaged.append(number)
        return absent, damaged

    @contextmanager
    def building(self, on_wait: Callable[[], object]) -> Iterator[None]:
        """Keep other processes from writing shards during a `with` block.

        If another process is writing, call `on_wait`, then wait until that process has finished.
        """
        handle = os.open(self.folder / BUILD, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not lock(handle, wait=False):
                on_wait()
                lock(handle)
            remove_drafts(self.folder)  # no other process is writing, so all drafts are left over from killed processes
            if not (self.folder / ABOUT).is_file():
                with atomic(self.folder / ABOUT) as draft:
                    draft.write_text(json.dumps(self._about, indent=2) + "\n", encoding="utf-8")
            yield
        finally:
            os.close(handle)

    def write_shard(self, number: int, rows: Array) -> None:
        """Write the rows of a shard. Call this only inside a `with store.building(...)` block."""
        data = np.ascontiguousarray(rows, self.layout.dtype)
        expected = (len(self.layout.shard(number)), *self.layout.shape)
        if data.shape != expected:
            raise ValueError(f"shard {number} must have shape {list(expected)}, got {list(data.shape)}")
        with atomic(self._path(number)) as draft, draft.open("wb") as file:
            file.write(data.data)
            file.write(hashlib.sha256(data.data).digest())

    def read(self, rows: ArrayLike) -> Array:
        """Return the given rows as an array [len(rows), *shape], in the given order."""
        selected = np.asarray(rows, dtype=np.int64)
        shards, positions = np.divmod(selected, self.layout.rows_per_shard)
        result = np.empty((len(selected), *self.layout.shape), self.layout.dtype)
        data = result.reshape(len(selected), math.prod(self.layout.shape)).view(np.uint8)
        for number in np.unique(shards).tolist():
            path = self._path(number)
            try:
                with path.open("rb", buffering=0) as file:
                    for i in np.flatnonzero(shards == number).tolist():
                        file.seek(int(positions[i]) * self.layout.row_bytes)
                        if file.readinto(data[i].data) != self.layout.row_bytes:
                            raise OSError(0, "the file is too short")
            except OSError as error:
                raise NearfarError(f"{path} cannot be read ({error.strerror}): start the run again") from error
        return result

    def _path(self, number: int) -> Path:
        return _shard_path(self.folder, number)

    def _is_intact(self, number: int) -> bool:
        remaining = len(self.layout.shard(number)) * self.layout.row_bytes
        path, digest = self._path(number), hashlib.sha256()
        if path.stat().st_size != remaining + DIGEST_BYTES:
            return False
        with path.open("rb") as file:
            while remaining and (block := file.read(min(BLOCK_BYTES, remaining))):
                digest.update(block)
                remaining -= len(block)
            return file.read() == digest.digest()


def count_absent(folder: Path, layout: RowLayout) -> int:
    """Return the number of rows of a store whose shards do not exist. The store is not created or verified."""
    return sum(len(layout.shard(i)) for i in range(layout.shards) if not _shard_path(folder, i).is_file())


def _shard_path(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.rows"


@dataclass(frozen=True)
class StoreSummary:
    """A store in a folder of stores.

    Attributes:
        folder: Folder of the store.
        about: Contents of about.json; empty if it cannot be read.
        size: Size on disk in bytes.
        last_used: Unix time of the last use, in seconds.
    """

    folder: Path
    about: dict[str, Any]
    size: int
    last_used: float


def list_stores(folder: Path) -> list[StoreSummary]:
    """List the stores in a folder, the most recently used first."""
    summaries = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(".") or not (path / USE).is_file():
            continue
        try:
            about = json.loads((path / ABOUT).read_bytes())
        except (OSError, ValueError):
            about = {}
        size = sum(shard.stat().st_size for shard in path.glob("*.rows"))
        about = about if isinstance(about, dict) else {}
        summaries.append(StoreSummary(path, about, size, (path / USE).stat().st_mtime))
    return sorted(summaries, key=lambda summary: (-summary.last_used, summary.folder.name))


def remove_store(folder: Path) -> bool:
    """Remove a store and return True. If a process uses the store, keep it and return False."""
    handle = os.open(folder / USE, os.O_RDWR)
    try:
        if not lock(handle, wait=False):
            return False
        # after the rename, a process that opens the store creates a new one
        removed = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(removed, ignore_errors=True)
        folder.rename(removed)
        shutil.rmtree(removed)
    except OSError as error:
        raise NearfarError(f"{folder} cannot be removed ({error.strerror}): check the permissions") from error
    finally:
        os.close(handle)
    return True


def _hold(folder: Path) -> int:
    """Open use.lock and return its file handle. While it is open, no other process can remove the store."""
    path = folder / USE
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # another process removed the folder after it was created here
            continue
        lock(handle, shared=True)
        try:
            if os.path.samestat(os.fstat(handle), path.stat()):
                os.utime(path)
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # the store was removed before this process locked it, so create it again
