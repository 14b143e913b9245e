"""The protocol `Database`: the operations that uploads and searches need from a vector database, and their types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from nearfar.errors import NearfarError, install_hint
from nearfar.registry import Registry
from nearfar.search.exact import Vectors
from nearfar.validation import Ints

FORMAT, VERSION = "nearfar table", 1


@dataclass(frozen=True)
class TableHeader:
    """A description of the contents of a table. It is stored in the database together with the rows.

    Attributes:
        dim: The number of dimensions of the vectors.
        model: The sha256 of the weights that computed the vectors, "" if unknown.
        rows: The number of rows once the upload is complete.
        kind: "exact", or the kind of approximate index that the database searches.
        effort: The search effort of an approximate index, 0 for exact search. Its unit depends on the database.
        complete: Whether the last upload has finished.
    """

    dim: int
    model: str
    rows: int
    kind: str = "exact"
    effort: int = 0
    complete: bool = False

    def to_json(self) -> str:
        """Return the header as text that a database can store."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | None, table: str) -> TableHeader:
        """Parse the header of a table.

        Raises:
            NearfarError: If the table was not written by nearfar, or was written by another version of it.
        """
        try:
            values = json.loads(text or "")
            if values.pop("format") != FORMAT:
                raise KeyError("format")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise NearfarError(f"table {table} was not written by nearfar: choose another --table") from None
        if values.pop("version", None) != VERSION or set(values) != {field.name for field in fields(cls)}:
            problem = f"table {table} was written by another version of nearfar"
            raise NearfarError(f"{problem}: drop it in the database and export again, or use another --table")
        return cls(**values)


@dataclass(frozen=True)
class Rows:
    """N samples to store.

    Attributes:
        ids: Distinct non-negative integers [N].
        labels: Class names [N]; None for samples without a label.
        names: Names [N].
        vectors: float32 unit vectors [N, dim].
        digests: A hash of the label, name and vector of each row, int64 [N]. A row that is already stored with the same
            hash need not be stored again.
    """

    ids: Ints
    labels: Sequence[str | None]
    names: Sequence[str]
    vectors: Vectors
    digests: Ints

    def __len__(self) -> int:
        return len(self.ids)


class Match(NamedTuple):
    """A row that a search found."""

    id: int
    distance: float
    label: str | None
    name: str


class Database(Protocol):
    """One table of a vector database.

    The constructor takes the place, such as a path or a URL without its scheme, the name of the table, and whether a
    missing database is created. Every method that writes commits before it returns, so that nothing that was
    written is lost if the process is killed.

    Attributes:
        kinds: "exact" and the kinds of approximate index that this database can build.
        exact_up_to: The number of rows up to which an exact search is chosen by default.
    """

    kinds: ClassVar[tuple[str, ...]]
    exact_up_to: ClassVar[int]

    def __init__(self, place: str, *, table: str, create: bool) -> None: ...

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        """Return the exceptions that the driver raises, for example if a connection is refused.

        Their messages are shown to the user. If the driver is not installed, raise a NearfarError.
        """
        ...

    def read_header(self) -> TableHeader | None:
        """Return the header, or None if the table does not exist."""
        ...

    def create_table(self, header: TableHeader) -> None:
        """Create the table. It must not exist yet."""
        ...

    def write_header(self, header: TableHeader) -> None:
        """Replace the header of the table."""
        ...

    def drop_table(self) -> None:
        """Remove the table, its rows and its header."""
        ...

    def digests(self) -> Iterator[tuple[Ints, Ints]]:
        """Yield the ids and the hashes (see `Rows.digests`) of all rows, in several parts."""
        ...

    def upsert(self, rows: Rows) -> None:
        """Insert rows, and replace rows whose ids exist.

        If the process is killed, either all of these rows are stored or none.
        """
        ...

    def delete(self, ids: Ints) -> None:
        """Remove rows by their ids. Unknown ids are ignored."""
        ...

    def build(self, header: TableHeader) -> range:
        """Prepare the table for searching after an upload, and return the search efforts to choose from.

        The range is empty if the search is exact. Otherwise, `upload` starts with the smallest effort and doubles it
        until the recall is high enough or the largest effort is reached.
        """
        ...

    def search(self, query: Vectors, k: int, *, header: TableHeader, labels: Sequence[str] = ()) -> list[Match]:
        """Return the k rows nearest to a unit vector [dim], nearest first.

        Args:
            query: The query.
            k: Number of rows.
            header: The header of the table.
            labels: If given, only rows of these classes are searched. Such a search must be exact.
        """
        ...

    def fetch(self, id: int) -> tuple[Match, Vectors] | None:
        """Return a row as a match at distance 0, and its vector [dim]; None if there is no such row."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


DATABASES: Registry[type[Database]] = Registry("database", package="nearfar.search.databases")
D = TypeVar("D", bound=type[Database])


def import_driver(module: str, *, extra: str) -> Any:
    """Import the package that connects to a database.

    Args:
        module: Name of the module to import.
        extra: Name of the optional dependencies of nearfar ("extra") that contain the package.

    Raises:
        NearfarError: If the package is not installed. The message contains the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise NearfarError(f"the database needs {error.name or module}: {install_hint(extra)}") from None
