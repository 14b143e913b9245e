"""Locks for directories, so that two processes never write to the same directory at the same time.

A lock is a file in the directory. The owner locks this file with `flock`. The kernel releases the lock when the owner
ends for any reason, so a lock file that a killed process left behind blocks nobody. Systems without `flock` (Windows)
have no locks: do not write to the same directory from two processes there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.files import lock, path_exists

# Descriptors of the locks that this process holds. A forked process closes them, because it would otherwise keep the
# locks of its parent after the parent has ended.
_held: set[int] = set()


@contextlib.contextmanager
def lock_directory(
    folder: Path, name: str, *, state: str, remedy: str, wait: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Hold a lock on a directory for the duration of a `with` block.

    A missing directory is created. If it is still empty at the end of the block, it is removed again.

    Args:
        folder: The directory.
        name: The name of the lock. Locks with different names do not exclude each other.
        state: How a process that holds the lock uses the directory, such as "is used". The messages continue with "by"
            and that process.
        remedy: What a user can do if another process holds the lock. It ends the error message.
        wait: A function that prints a message. If it is given and another process holds the lock, the function is
            called once, and this process then waits for the lock.

    Raises:
        NearfarError: If another process or thread holds the lock and `wait` is None.
    """
    path = folder / f".{name}.lock"
    created = [parent for parent in (folder, *folder.parents) if not path_exists(parent)]
    try:
        handle = _acquire(path, state, remedy, wait)
    except OSError as error:
        _remove_empty(created)
        reason = f"({error.strerror}): check the disk and permissions"
        raise NearfarError(f"{path}: cannot be written {reason}") from error
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process:
            # Delete the file before releasing the lock. A process that was waiting for the lock then sees that the
            # file is gone, and tries again with a new one.
            with contextlib.suppress(OSError):
                path.unlink()
            _held.discard(handle)
            os.close(handle)
            _remove_empty(created)


def is_lock_file(path: Path) -> bool:
    """Return whether a path has the name of a lock file."""
    return path.name.startswith(".") and path.name.endswith(".lock")


def _acquire(path: Path, state: str, remedy: str, wait: Callable[[str], object] | None) -> int:
    has_waited = False
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # the last owner has just removed the directory, which was empty
        except FileExistsError:
            # mkdir found the directory, but the last owner removed it before mkdir could check that it is a directory
            if path.parent.exists() and not path.parent.is_dir():
                raise
            continue
        try:
            if not lock(handle, wait=False):
                message = f"{path.parent}: {state} by {_read_owner(path)}"
                if wait is None:
                    raise NearfarError(f"{message}: {remedy}")
                if not has_waited:
                    wait(f"{message}: waiting until it ends")
                has_waited = True
                lock(handle)
            if _is_same_file(handle, path):
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps(_describe_process()).encode("ascii"))
                _held.add(handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _describe_process() -> dict[str, str | int]:
    # Record only the name of the command, because its options can contain a secret token.
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    command = f"{name} {sys.argv[1]}" if name == "nearfar" and len(sys.argv) > 1 else name
    return {"process": os.getpid(), "command": command, "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _read_owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_bytes())
        return f"process {owner['process']} ({owner['command']}, since {owner['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"  # the owner has just acquired the lock and has not written its description yet


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _close_in_child() -> None:
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
