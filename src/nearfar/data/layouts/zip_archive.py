"""Zip archives: index the images and read each by its offset. `nearfar.data.layouts.archive` opens them as data."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nearfar.data.layouts.member_names import check_member_count, why_name_refused, why_size_refused
from nearfar.data.layouts.paths import is_image
from nearfar.errors import NearfarError

ENCRYPTED = 0x1
LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, ..., length of the name, length of the extra field
SIGNATURE = b"PK\x03\x04"


class ZipMember(NamedTuple):
    """Location of a file in a zip archive: header offset, size, compressed size, whether it is deflated, and CRC-32."""

    offset: int
    size: int
    packed_size: int
    is_deflated: bool
    crc: int


class ZipIndex(NamedTuple):
    """The images in a zip file, messages about members that were refused, and the number of other files."""

    members: dict[str, ZipMember]
    refused: list[str]
    others: int


def index_zip(path: Path) -> ZipIndex:
    """Return the images in a zip file, from the list of members at its end. No member is decompressed."""
    members: dict[str, ZipMember] = {}
    refused: list[str] = []
    others = 0
    try:
        with zipfile.ZipFile(path) as archive:
            listing = archive.infolist()
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise NearfarError(f"{path} is not a readable zip archive ({error}): create or copy it again") from error
    check_member_count(path, len(listing))
    for info in listing:
        if info.is_dir():
            continue
        name = info.filename.removeprefix("./")
        reason = _why_refused(info)
        if reason:
            refused.append(f"{info.filename!r} {reason}")
        elif not is_image(name):
            others += 1
        else:
            is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
            members[name] = ZipMember(info.header_offset, info.file_size, info.compress_size, is_deflated, info.CRC)
    return ZipIndex(members, refused, others)


def _why_refused(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & ENCRYPTED:
        return "is encrypted"
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        return "is a link"
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "is a device or a pipe"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"has the compression type {info.compress_type}, but only stored and deflated members can be read"
    # zipfile changes the separators in `filename` depending on the system, so check the name as it is stored
    return why_name_refused(info.orig_filename) or why_size_refused(max(info.file_size, info.compress_size))


def read_zip_member(read: Callable[[int, int], bytes], member: ZipMember, where: str) -> bytes:
    """Return the decompressed bytes of a member.

    At most `member.size` + 1 bytes are decompressed, so a member that claims to be small cannot exhaust memory.

    Args:
        read: Function `read(offset, size)` that returns bytes of the zip file.
        member: Location of the member.
        where: Description of the member for error messages.

    Raises:
        NearfarError: If the member is damaged.
    """
    header = read(member.offset, LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size or not header.startswith(SIGNATURE):
        raise NearfarError(f"{where} is damaged (its header is missing): create or copy the archive again")
    _, name_length, extra_length = LOCAL_HEADER.unpack(header)
    data = read(member.offset + LOCAL_HEADER.size + name_length + extra_length, member.packed_size)
    if member.is_deflated:
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, member.size + 1)
        except zlib.error as error:
            raise NearfarError(f"{where} is damaged ({error}): create or copy the archive again") from error
    if len(data) != member.size or zlib.crc32(data) != member.crc:
        raise NearfarError(f"{where} is damaged (its checksum differs): create or copy the archive again")
    return data
