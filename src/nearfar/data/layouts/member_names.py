"""Rules that decide which members of tar and zip archives are refused."""

from __future__ import annotations

from pathlib import Path

from nearfar.errors import NearfarError

MAX_MEMBERS = 20_000_000
MAX_MEMBER_BYTES = 1 << 28


def check_member_count(path: Path, count: int) -> None:
    """Raise an error if an archive has too many members. The limit bounds the memory that their index takes."""
    if count > MAX_MEMBERS:
        raise NearfarError(f"{path} has {count:,} members, more than the limit of {MAX_MEMBERS:,}: unpack it")


def why_name_refused(name: str) -> str:
    """Return why a member with this name is refused, or an empty string if it is accepted.

    >>> why_name_refused("a/../../x.jpg"), why_name_refused("a/x.jpg")
    ("has '..' in its path", '')
    """
    if name.startswith(("/", "\\")) or ":" in name[:2]:
        return "has an absolute path"
    return "has '..' in its path" if ".." in name.replace("\\", "/").split("/") else ""


def why_size_refused(size: int) -> str:
    """Return why a member of this size is refused, or an empty string if it is accepted.

    The limit prevents a single member from exhausting the memory.
    """
    return f"has {size:,} bytes, more than the limit of {MAX_MEMBER_BYTES:,}" if size > MAX_MEMBER_BYTES else ""
