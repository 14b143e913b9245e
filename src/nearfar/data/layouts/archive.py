"""Tar and zip archives of class folders. Members are indexed once and read by their offset, without extraction."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tarfile
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from nearfar.data.layouts import SPECIFIC, register
from nearfar.data.layouts.member_names import check_member_count, why_name_refused, why_size_refused
from nearfar.data.layouts.official import note_partial_copy
from nearfar.data.layouts.paths import NOT_IMAGES, is_image, manifest_from_paths
from nearfar.data.layouts.zip_archive import ZipMember, index_zip, read_zip_member
from nearfar.data.manifest import Manifest
from nearfar.errors import NearfarError
from nearfar.formatting import counted
from nearfar.temporary_files import create_temporary

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
KEEP_FREE_BYTES = 1 << 30
COPY_BYTES = 1 << 20
BLOCK = 512


@dataclass(frozen=True)
class Archive:
    """Index of the images in a tar or zip file.

    Attributes:
        file: The archive, or its uncompressed copy.
        members: Maps the name of each image to its (offset, size) in a tar file, or to its `ZipMember` in a zip file.
        problems: Messages about members that were refused and about a truncated archive.
        others: Number of files that are not images.
        changed: Modification time of the archive in nanoseconds.
    """

    file: Path
    members: Mapping[str, tuple[int, int] | ZipMember]
    problems: tuple[str, ...]
    others: int
    changed: int

    @property
    def notes(self) -> list[str]:
        """Notes for the manifest: the problems, and the number of skipped files."""
        return [*self.problems, *([f"skipped {counted(self.others, *NOT_IMAGES)}"] if self.others else [])]

    def read(self, name: str) -> bytes:
        """Read a member. Threads and forked workers can call this concurrently, because each opens the file itself."""
        if name not in self.members:
            raise NearfarError(f"{self.file} has no member {name}: create the manifest again")
        member = self.members[name]
        if isinstance(member, ZipMember):
            return read_zip_member(partial(_read_at, self.file, self.changed), member, f"{self.file}: {name}")
        offset, size = member
        data = _read_at(self.file, self.changed, offset, size)
        if len(data) != size:
            raise NearfarError(f"{self.file} is truncated (it ends inside {name}): copy it again")
        return data


def is_archive(path: Path) -> bool:
    """Return whether the path is a file with the suffix of a tar or zip archive."""
    return path.name.lower().endswith(SUFFIXES) and path.is_file()


@register("archive", recognizes=is_archive, order=SPECIFIC)
def open_archive(path: Path, *, allow_partial: bool = False) -> Manifest:
    """Open the images in a tar or zip archive. Classes and splits are derived from the paths, as for a folder.

    An error is raised for links, devices, sparse files, encrypted members, zip members that are compressed by a method
    other than Deflate, members larger than 256 MiB, paths that are absolute or contain `..`, and truncated archives.
    With `allow_partial`, such members are skipped and counted, and a tar that was cut off between two members is
    accepted. If several members have the same name, the last one is used, as when the archive is unpacked.
    """
    archive = load_archive(path, allow_partial=allow_partial)
    manifest = manifest_from_paths(list(archive.members), root=path, source=path.name, notes=archive.notes)
    return note_partial_copy(manifest)


def load_archive(path: Path, *, allow_partial: bool = False) -> Archive:
    """Return the index of an archive. The index is cached until the size or modification time of the file changes."""
    try:
        state = os.stat(path)
    except OSError as error:
        raise NearfarError(f"{path} cannot be read ({error.strerror}): check the path") from error
    archive = _build_index(path.resolve(), state.st_size, state.st_mtime_ns)
    if archive.problems and not allow_partial:
        raise NearfarError(f"{path}: {archive.problems[0]}: create or copy the archive again, or set allow_partial")
    return archive


@lru_cache(maxsize=16)
def _build_index(path: Path, size: int, changed: int) -> Archive:
    if path.name.lower().endswith(".zip"):
        found = index_zip(path)
        return Archive(path, found.members, tuple(_count_refused(found.refused)), found.others, changed)
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
            # A complete tar ends with a block of zeros. Check this, because tarfile accepts an archive that was cut off
            # between two members.
            with open(plain, "rb") as file:
                file.seek(tar.offset)
                is_truncated = file.read(BLOCK) != bytes(BLOCK)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise NearfarError(f"{path} is not a readable tar archive ({error}): create or copy it again") from error
    problems = ["the archive is truncated (the block of zeros at its end is missing)"] if is_truncated else []
    check_member_count(path, len(members))
    return Archive(plain, members, (*problems, *_count_refused(refused)), others, changed)


def _count_refused(refused: list[str]) -> list[str]:
    return [f"{counted(len(refused), 'member')} refused, the first: {refused[0]}"] if refused else []


def _why_refused(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "is a link"
    if not member.isreg():
        return "is a device or a pipe"
    if member.issparse():
        return "is sparse"
    return why_name_refused(member.name) or why_size_refused(member.size)


def _is_gzip(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise NearfarError(f"{path} cannot be read ({error.strerror}): check its permissions") from error


def _uncompress(path: Path) -> Path:
    """Write the uncompressed tar to a temporary file, which is deleted at exit, and return its path.

    A gzip file has no random access, so its members cannot be read by their offset.
    """
    plain = create_temporary(".tar")
    try:
        with gzip.open(path) as packed, open(plain, "wb") as out:
            free = shutil.disk_usage(plain.parent).free - KEEP_FREE_BYTES
            while block := packed.read(COPY_BYTES):
                free -= len(block)
                if free < 0:
                    raise NearfarError(
                        f"{path} does not fit into {plain.parent} when it is uncompressed: "
                        "set TMPDIR to a folder on a larger disk, or uncompress the archive with gunzip"
                    )
                out.write(block)
    except BaseException as error:
        with contextlib.suppress(OSError):
            plain.unlink()
        if isinstance(error, OSError | EOFError | zlib.error):
            raise NearfarError(f"{path} cannot be uncompressed ({error}): copy it again") from error
        raise
    return plain


_local = threading.local()


def _read_at(path: Path, changed: int, offset: int, size: int) -> bytes:
    # Each thread of each process opens the file itself, because threads and forked processes would share the position
    # of an open file.
    key = (os.getpid(), path, changed)
    if getattr(_local, "key", None) != key:
        _local.file = open(path, "rb", buffering=0)  # noqa: SIM115 - stays open for the next reads
        _local.key = key
    _local.file.seek(offset)
    data: bytes = _local.file.read(size)
    return data
