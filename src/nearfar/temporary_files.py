"""Temporary files that are deleted at the end of the process, or by a later process if this one is killed.

A process holds a lock (`flock`) on each of its temporary files. The kernel releases the lock when the process ends, so
a file without a lock is no longer used. Windows has no `flock`, but refuses to delete a file that is open.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import time
from pathlib import Path

from nearfar.files import lock

PREFIX = "nearfar-"
# Files younger than this are never deleted: their process may have created them but not locked them yet.
MIN_AGE_SECONDS = 60.0


def create_temporary(suffix: str) -> Path:
    """Create an empty temporary file and return its path.

    Temporary files with the same suffix that killed processes left behind are deleted first.
    """
    remove_stale(suffix)
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=suffix)
    path, owner = Path(name), os.getpid()
    lock(handle)  # held until the process and its forked workers end

    def remove() -> None:
        # a forked worker must not delete the file that its parent still reads
        if os.getpid() == owner:
            with contextlib.suppress(OSError):
                path.unlink()

    atexit.register(remove)
    return path


def remove_stale(suffix: str) -> None:
    """Delete the temporary files with this suffix whose processes have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*{suffix}"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime < MIN_AGE_SECONDS:
                continue
            handle = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))  # fails for files of other users
            try:
                if lock(handle, wait=False):
                    path.unlink()
            finally:
                os.close(handle)
