"""Set environment variables for the duration of a `with` block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def environment_variable(name: str, value: str, *, replace: bool = True) -> Iterator[None]:
    """Set an environment variable, which new processes inherit, for the duration of a `with` block.

    Args:
        name: The name of the variable.
        value: Its value in the block.
        replace: If False, a value that the variable already has is kept.
    """
    before = os.environ.get(name)
    if before is None or replace:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
