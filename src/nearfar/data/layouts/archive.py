"""Tar archives of class folders. Members are indexed once and read by offset; nothing is extracted."""

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

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.official import note_partial_copy
from nearfar.data.layouts.paths import is_image, manifest_from_paths
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError

SUFFIXES = (".tar", ".tar.gz", ".tgz")
KEEP_FREE_BYTES = 1 << 30
COPY_BYTES = 1 << 20
BLOCK = 512


@dataclass(frozen=True)
class Archive:
    """Index of the images in a tar file: name -> (offset, size). `file` is the tar or its uncompressed copy."""

    file: Path
    members: dict[str, tuple[int, int]]
    problems: tuple[str, ...]
    others: int
    changed: int

    @property
    def notes(self) -> list[str]:
        """What the manifest leaves out."""
        return [*self.problems, *([f"{self.others:,} files that are not images skipped"] if self.others else [])]

    def read(self, name: str) -> bytes:
        """Read a member. Threads and forked workers can call this at the same time: they share no file position."""
        if name not in self.members:
            raise NearfarError(f"{self.file}: has no member {name}: create the manifest again")
        offset, size = self.members[name]
        data = _read_at(self.file, self.changed, offset, size)
        if len(data) != size:
            raise NearfarError(f"{self.file}: ends inside {name}: the archive is truncated, copy it again")
        return data


def is_archive(path: Path) -> bool:
    """Return whether the path is a file with the suffix of a tar archive."""
    return path.name.lower().endswith(SUFFIXES) and path.is_file()


@register("archive", recognizes=is_archive, order=SPECIFIC)
def open_archive(path: Path, *, allow_partial: bool = False) -> Manifest:
    """Open the images in a tar archive, with classes and split as for a folder.

    A member that is a link or a device, or whose path is absolute or contains `..`, is an error. With `allow_partial`
    it is left out and counted. If several members have the same name, the last one counts, as when a tar is unpacked.
    """
    archive = load_archive(path, allow_partial=allow_partial)
    manifest = manifest_from_paths(list(archive.members), root=path, source=path.name, notes=archive.notes)
    return note_partial_copy(manifest)


def load_archive(path: Path, *, allow_partial: bool = False) -> Archive:
    """Return the index of a tar file. It is cached in the process until the size or modification time changes."""
    try:
        state = os.stat(path)
    except OSError as error:
        raise NearfarError(f"{path}: cannot be read ({error.strerror}): check the path") from error
    archive = _build_index(path.resolve(), state.st_size, state.st_mtime_ns)
    if archive.problems and not allow_partial:
        raise NearfarError(f"{path}: {archive.problems[0]}: pack or copy it again, or allow a partial copy")
    return archive


@lru_cache(maxsize=16)
def _build_index(path: Path, size: int, changed: int) -> Archive:
    plain = _uncompress(path) if _is_gzip(path) else path
    members: dict[str, tuple[int, int]] = {}
    refused: list[str] = []
    others = 0
    try:
        with tarfile.open(plain, "r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if member.isdir():
                    continue
                reason = _why_refused(member)
                if reason:
                    refused.append(f"{member.name!r} {reason}")
                elif not is_image(name):
                    others += 1
                else:
                    members[name] = (member.offset_data, member.size)
            # A complete tar ends with a block of zeros. Reading one that was cut between two members raises no error.
            with open(plain, "rb") as file:
                file.seek(tar.offset)
                is_truncated = file.read(BLOCK) != bytes(BLOCK)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise NearfarError(f"{path}: is not a readable tar archive ({error}): copy or pack it again") from error
    problems = ["the archive is truncated: its end mark is missing"] if is_truncated else []
    if refused:
        problems.append(f"{len(refused):,} members refused, the first: {refused[0]}")
    return Archive(plain, members, tuple(problems), others, changed)


def _why_refused(member: tarfile.TarInfo) -> str:
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


def _uncompress(path: Path) -> Path:
    """Write the uncompressed tar to a temporary file, because gzip has no random access. It is removed at exit."""
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
            free = shutil.disk_usage(os.path.dirname(name)).free - KEEP_FREE_BYTES
            while block := packed.read(COPY_BYTES):
                free -= len(block)
                if free < 0:
                    folder = os.path.dirname(name)
                    raise NearfarError(
                        f"{path}: does not fit into {folder} uncompressed: set TMPDIR or gunzip it yourself"
                    )
                out.write(block)
    except (OSError, EOFError, zlib.error) as error:
        remove()
        raise NearfarError(f"{path}: cannot be uncompressed ({error}): copy it again") from error
    except NearfarError:
        remove()
        raise
    return Path(name)


_local = threading.local()


def _read_at(path: Path, changed: int, offset: int, size: int) -> bytes:
    # Each thread of each process opens its own file: processes that fork share the position of an open file.
    key = (os.getpid(), path, changed)
    if getattr(_local, "key", None) != key:
        _local.file = open(path, "rb", buffering=0)  # noqa: SIM115 - stays open for the next reads
        _local.key = key
    _local.file.seek(offset)
    data: bytes = _local.file.read(size)
    return data
