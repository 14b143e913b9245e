"""Atomic writes and digests of files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from nearfar.errors import NearfarError


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` at the end and is removed on an error.

    The content reaches the disk before the rename, so a crash leaves either the old file or the new one.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        handle = os.open(draft, os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(draft, path)
    except OSError as error:
        raise NearfarError(f"{path}: cannot be written ({error.strerror}): check the disk and permissions") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def remove_drafts(folder: Path) -> None:
    """Remove the temporary files of `atomic` that a killed process left in a folder."""
    for draft in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            draft.unlink()


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file as a hexadecimal string."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
