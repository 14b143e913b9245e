"""Atomic file writes, file locks and file digests."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from nearfar.errors import NearfarError

try:
    import fcntl
except ImportError:  # Windows has no fcntl, so nearfar does not lock files there
    fcntl = None  # type: ignore[assignment]

DAY_SECONDS = 86400.0
# Process ids are unique only per machine, so names of temporary files also contain a hash of the host name.
_HOST = hashlib.sha256(platform.node().encode("utf-8", "replace")).hexdigest()[:8]


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`. On success, the temporary file replaces `path`; otherwise it is deleted.

    The content is flushed to disk before the rename, so after a crash `path` is either the old file or the new one.
    """
    draft = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.part")
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


def expand_user(path: str | Path) -> Path:
    """Return a path in which a leading `~` or `~user` is replaced with the home directory.

    Raises:
        NearfarError: If the user does not exist or has no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise NearfarError(
            f"{path}: there is no home directory for {Path(path).parts[0]}: write out the path"
        ) from None


def path_exists(path: Path) -> bool:
    """Return whether a path exists.

    Raises:
        NearfarError: If the system cannot tell, for example because a name is too long or a folder is not readable.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NearfarError(f"{path}: the symbolic links form a loop: remove or correct them") from None
        raise NearfarError(f"{path}: cannot be used ({error.strerror}): check the path and its permissions") from None
    except ValueError:  # the name contains a null byte
        return False
    return True


def user_cache() -> Path:
    """Return the cache folder of nearfar: $NEARFAR_CACHE, or by default `nearfar` in the cache folder of the user."""
    if os.environ.get("NEARFAR_CACHE"):
        return Path(os.environ["NEARFAR_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(os.path.expanduser("~")) / ".cache") / "nearfar"


def is_draft(path: Path) -> bool:
    """Return whether the name of a path is that of a temporary file created by `atomic`."""
    return path.name.startswith(".") and path.name.endswith(".part")


def remove_drafts(folder: Path, name: str = "*") -> None:
    """Delete the temporary files in a folder that `atomic` left behind because its process was killed.

    Files of running processes are kept. Files written by other machines that share the disk are kept for a day.

    Args:
        folder: The folder.
        name: Delete only the temporary files of the file with this name. By default, those of all files.
    """
    for draft in folder.glob(f".{name}.part" if name == "*" else f".{name}.*.part"):
        with contextlib.suppress(OSError):
            if _is_stale(draft):
                draft.unlink()


def _is_stale(draft: Path) -> bool:
    match = re.search(r"\.([0-9a-f]{8})\.([0-9]+)\.part$", draft.name)
    if match is None or match[1] != _HOST:
        return time.time() - draft.lstat().st_mtime > DAY_SECONDS
    try:
        os.kill(int(match[2]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def check_not_read(out: Path, read: Iterable[Path], *, remedy: str) -> None:
    """Raise an error if writing `out` would overwrite one of the files that were read, even through a link.

    Args:
        out: The file to write.
        read: The files that were read. Files that do not exist are ignored.
        remedy: What the user can do. It ends the error message.
    """
    for path in read:
        if out.exists() and path.exists() and out.samefile(path):
            raise NearfarError(f"{out}: this command reads this file and would overwrite it: {remedy}")


def lock(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file. The lock is released when the handle is closed or the process ends, even if it is killed.

    Args:
        handle: Descriptor of the open file.
        shared: If True, other processes can hold a shared lock on the file at the same time.
        wait: If True, wait until other processes have released the lock.

    Returns:
        False if another process holds the lock and `wait` is False. On Windows, nothing is locked and the result is
        always True.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file as a hexadecimal string."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
