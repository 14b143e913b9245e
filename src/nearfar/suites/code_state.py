"""Which code made a result: versions move seldom, the code between them often."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

SUFFIXES = (".py", ".yaml")
DIGITS = 10


@cache
def code_state() -> str:
    """The first digits of a sha256 over nearfar's own modules, recipes and suites, as they were when first asked."""
    root = Path(str(files("nearfar")))
    digest = hashlib.sha256()
    for path in sorted(each for each in root.rglob("*") if each.suffix in SUFFIXES):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:DIGITS]
