"""Tar archives of class folders, read in place: members are indexed once and read by offset, nothing is extracted."""

from __future__ import annotations

import atexit
import contextlib
import gzip
import os
import shutil
import tarfile
import tempfile
import threading
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nearfar.data.layouts.paths import is_image, manifest_from_paths
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
KEEP_FREE_BYTES = 1 << 30
COPY_BYTES = 1 << 20
BLOCK = 512


@dataclass(frozen=True)
class Archive:
    """Where the pictures of a plain tar file lie: name -> (offset, size). `file` is the tar, or its unpacked copy."""

    file: Path
    members: dict[str, tuple[int, int]]
    problems: tuple[str, ...]
    others: int
    changed: int

    @property
    def notes(self) -> list[str]:
        """What the manifest does not have, in sentences."""
        return [*self.problems, *([f"{self.others:,} files that are no pictures passed over"] if self.others else [])]

    def read(self, name: str) -> bytes:
        """The bytes of a member; safe from many threads and from forked workers (no shared file position)."""
        if name not in self.members:
            raise NearfarError(f"{self.file}: has no member {name}: build the manifest again")
        offset, size = self.members[name]
        data = _read_at(self.file, self.changed, offset, size)
        if len(data) != size:
            raise NearfarError(f"{self.file}: ends inside {name}: the archive is truncated, copy it again")
        return data


def open_archive(path: Path, *, allow_partial: bool = False) -> Manifest:
    """A manifest of the pictures in a tar; classes and split as for a folder.

    A member that is a link, a device, absolute or climbs out with `..` is an error; with `allow_partial` it is left
    out and counted. Of members with the same name the last counts, as when a tar is unpacked.
    """
    archive = load_archive(path, allow_partial=allow_partial)
    return manifest_from_paths(list(archive.members), root=path, source=path.name, notes=archive.notes)


def load_archive(path: Path, *, allow_partial: bool = False) -> Archive:
    """The index of a tar; made once in a process for the same file (by size and time of change)."""
    try:
        state = os.stat(path)
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    archive = _load(path.resolve(), state.st_size, state.st_mtime_ns)
    if archive.problems and not allow_partial:
        raise NearfarError(f"{path}: {archive.problems[0]}: pack or copy it again, or allow a partial read")
    return archive


@lru_cache(maxsize=16)
def _load(path: Path, size: int, changed: int) -> Archive:
    plain = _plain_copy(path) if _is_gzip(path) else path
    members: dict[str, tuple[int, int]] = {}
    refused: list[str] = []
    others = 0
    try:
        with tarfile.open(plain, "r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.isdir():
                    continue
                reason = _refusal(member)
                if reason:
                    refused.append(f"{member.name!r} {reason}")
                elif not is_image(name):
                    others += 1
                else:
                    members[name] = (member.offset_data, member.size)
            # a tar ends with a block of zeros; one that was cut between two members just stops
            with open(plain, "rb") as file:
                file.seek(tar.offset)
                cut = file.read(BLOCK) != bytes(BLOCK)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise NearfarError(f"{path}: is not a readable tar archive ({error}): copy or pack it again") from error
    problems = ["the archive is truncated, it has no end mark"] if cut else []
    if refused:
        problems.append(f"{len(refused):,} members refused, the first: {refused[0]}")
    return Archive(plain, members, tuple(problems), others, changed)


def _refusal(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "is a link"
    if not member.isreg():
        return "is a device or a pipe"
    if member.issparse():
        return "is sparse"
    if member.name.startswith(("/", "\\")) or ":" in member.name[:2]:
        return "has an absolute path"
    if ".." in member.name.replace("\\", "/").split("/"):
        return "has '..' in its path"
    return ""


def _is_gzip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _plain_copy(path: Path) -> Path:
    """The uncompressed tar in a temporary file, removed at exit: gzip has no random access."""
    handle, name = tempfile.mkstemp(prefix="nearfar-", suffix=".tar")
    owner = os.getpid()

    def remove() -> None:
        # a forked worker must not remove the file that its parent still reads
        if os.getpid() == owner:
            with contextlib.suppress(OSError):
                os.unlink(name)

    atexit.register(remove)
    try:
        with gzip.open(path) as packed, open(handle, "wb") as out:
            room = shutil.disk_usage(os.path.dirname(name)).free - KEEP_FREE_BYTES
            while block := packed.read(COPY_BYTES):
                room -= len(block)
                if room < 0:
                    where = os.path.dirname(name)
                    raise NearfarError(f"{path}: does not fit into {where} unpacked: set TMPDIR or gunzip it yourself")
                out.write(block)
    except (OSError, EOFError, zlib.error) as error:
        remove()
        raise NearfarError(f"{path}: cannot be unpacked ({error}): copy it again") from error
    except NearfarError:
        remove()
        raise
    return Path(name)


_local = threading.local()


def _read_at(path: Path, changed: int, offset: int, size: int) -> bytes:
    # one open file for each thread of each process: after a fork the position of a shared one would be shared too
    key = (os.getpid(), path, changed)
    if getattr(_local, "key", None) != key:
        _local.file = open(path, "rb", buffering=0)  # noqa: SIM115 - stays open for the next reads
        _local.key = key
    _local.file.seek(offset)
    data: bytes = _local.file.read(size)
    return data
