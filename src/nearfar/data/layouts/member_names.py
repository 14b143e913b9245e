"""The rules by which members of tar and zip archives are refused."""

from __future__ import annotations

from pathlib import Path

from nearfar.errors import NearfarError

MAX_MEMBERS = 20_000_000
MAX_MEMBER_BYTES = 1 << 28


def check_member_count(path: Path, count: int) -> None:
    """Raise an error if an archive has more members than an index of it should hold in memory."""
    if count > MAX_MEMBERS:
        raise NearfarError(f"{path}: has {count:,} members, more than the limit of {MAX_MEMBERS:,}: unpack it")


def why_name_refused(name: str) -> str:
    """Return why a member of this name is refused, or an empty string.

    >>> why_name_refused("a/../../x.jpg"), why_name_refused("a/x.jpg")
    ("has '..' in its path", '')
    """
    if name.startswith(("/", "\\")) or ":" in name[:2]:
        return "has an absolute path"
    return "has '..' in its path" if ".." in name.replace("\\", "/").split("/") else ""


def why_size_refused(size: int) -> str:
    """Return why a member of this size is refused, or an empty string. The size protects the memory."""
    return f"has {size:,} bytes, more than the limit of {MAX_MEMBER_BYTES:,}" if size > MAX_MEMBER_BYTES else ""
