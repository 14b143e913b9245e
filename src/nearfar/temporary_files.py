"""Temporary files that are deleted at the end of the process, or by a later process if this one is killed.

A process holds a lock (`flock`) of each of its temporary files, which the kernel releases when the process ends. A
file without a lock therefore belongs to nobody. Windows has no `flock`, but refuses to delete a file that is open.
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
# A file is younger than this while its process has created it but not locked it yet.
MIN_AGE_SECONDS = 60.0


def create_temporary(suffix: str) -> Path:
    """Create an empty temporary file and return its path. Delete such files of processes that were killed."""
    remove_stale(suffix)
    handle, name = tempfile.mkstemp(prefix=PREFIX, suffix=suffix)
    path, owner = Path(name), os.getpid()
    lock(handle)  # until the end of the process and of its forked workers

    def remove() -> None:
        # a forked worker must not delete the file that its parent still reads
        if os.getpid() == owner:
            with contextlib.suppress(OSError):
                path.unlink()

    atexit.register(remove)
    return path


def remove_stale(suffix: str) -> None:
    """Delete the temporary files with this suffix whose process has ended."""
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
