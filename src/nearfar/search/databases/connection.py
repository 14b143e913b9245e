"""Open a table of a database by an address such as "sqlite:samples.db" or "postgresql://localhost/shop"."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from nearfar.errors import NearfarError
from nearfar.search.databases.database import DATABASES, D, Database

DEFAULT_TABLE = "nearfar"
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


def register(name: str) -> Callable[[D], D]:
    """Return a decorator that registers a database class. The class handles addresses that start with "NAME:"."""
    return DATABASES.register(name)


def names() -> list[str]:
    """Return the names of all registered databases."""
    return DATABASES.names()


@contextmanager
def connect(address: str, *, table: str = DEFAULT_TABLE, create: bool = False) -> Iterator[Database]:
    """Open a table for the duration of a `with` block.

    Args:
        address: DATABASE:PLACE, where DATABASE is a registered name and PLACE is a path or the rest of a URL. Passwords
            and keys are not allowed here: they are read from environment variables (see docs/guides/production.md).
        table: The name of the table or collection.
        create: Whether to create a missing file or folder. If False, a missing file or folder raises an error.

    Raises:
        NearfarError: If the address is invalid, or if the database cannot be reached, read or written.
    """
    kind, _, place = address.partition(":")
    try:
        database = DATABASES.get(kind)
    except ValueError as error:
        raise NearfarError(
            f"{str(error).rstrip('.')}; an address is DATABASE:PLACE, such as sqlite:samples.db"
        ) from None
    if TABLE_NAME.fullmatch(table) is None:
        raise NearfarError(
            f"--table {table} must have at most 48 letters, digits or underscores, and must not start with a digit"
        )
    _refuse_password(place)
    errors = database.errors()
    try:
        with closing(database(place, table=table, create=create)) as opened:
            yield opened
    except errors as error:
        raise NearfarError(f"{address}, table {table}: {error}") from None


def _refuse_password(place: str) -> None:
    """Raise an error if the address of a database contains a password. The message does not repeat the password."""
    try:
        has_password = bool(urlsplit(place).password) or re.search(r"\bpassword=[^&]", place) is not None
    except ValueError:
        raise NearfarError("the address of the database is not a valid URL") from None
    if has_password:
        raise NearfarError(
            "the address of the database contains a password, which other users of this machine can see: remove it and "
            "set PGPASSWORD or QDRANT_API_KEY in the environment"
        )
