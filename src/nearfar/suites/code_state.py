"""A hash of the source code. Results record it, because the code changes more often than the version number."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

SUFFIXES = (".py", ".yaml")
DIGITS = 10


@cache
def code_state() -> str:
    """Return the first 10 hexadecimal digits of a SHA-256 hash over all modules, recipes and suites.

    The hash is cached: later calls return it even if the files have changed since the first call.
    """
    root = Path(str(files("nearfar")))
    digest = hashlib.sha256()
    for path in sorted(file for file in root.rglob("*") if file.suffix in SUFFIXES):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:DIGITS]
