"""DatabaseIndex: search a database table that holds the vectors of a model."""

from __future__ import annotations

from collections.abc import Callable

from nearfar.errors import NearfarError
from nearfar.search.databases.database import Database, Match, TableHeader
from nearfar.search.exact import Vectors
from nearfar.search.inputs import as_unit_vectors
from nearfar.validation import check_count


class DatabaseIndex:
    """A table that `upload` wrote, for searching.

    Args:
        database: The database.
        table: The name of the table, for messages.
        model: The sha256 of the weights that embed the queries, or "" if unknown.
        say: Function that is called with a warning if the upload of the table has not finished.

    Raises:
        NearfarError: If there is no such table, or if other weights computed its vectors.
    """

    def __init__(
        self, database: Database, *, table: str, model: str = "", say: Callable[[str], object] = lambda _: None
    ) -> None:
        header = database.read_header()
        if header is None:
            raise NearfarError(f"there is no table {table}: write it with `nearfar export RUN --to DATABASE:PLACE`")
        if model and header.model and header.model != model:
            problem = f"table {table} was not written with the weights of this model"
            raise NearfarError(f"{problem}: use another --table, or export again with --replace")
        if not header.complete:
            say(f"warning: the upload of table {table} has not finished, so rows can be missing: run the export again")
        self.database: Database = database
        self.header: TableHeader = header

    @property
    def dim(self) -> int:
        """The number of dimensions of the vectors."""
        return self.header.dim

    def search(self, query: Vectors, k: int = 10, *, label: tuple[str, ...] = ()) -> list[Match]:
        """Return the k nearest rows, nearest first, with distances 1 - cosine.

        Args:
            query: A vector [dim]; it need not be normalized.
            k: Number of neighbors.
            label: Only search rows of these classes. Such a search is always exact.
        """
        check_count("k", k)
        unit = as_unit_vectors("query", query[None], dim=self.dim)[0]
        matches = self.database.search(unit, k, header=self.header, labels=label)
        # Databases round differently, so a distance can be slightly below 0 and equal distances can be in any order.
        clipped = [match._replace(distance=max(0.0, match.distance)) for match in matches]
        return sorted(clipped, key=lambda match: (match.distance, match.id))

    def vector_of(self, id: int) -> Vectors:
        """Return the unit vector [dim] of a row. An unknown id raises a ValueError."""
        return self._fetch(id)[1]

    def row_of(self, id: int) -> Match:
        """Return the row with this id as a match at distance 0. An unknown id raises a ValueError."""
        return self._fetch(id)[0]

    def _fetch(self, id: int) -> tuple[Match, Vectors]:
        row = self.database.fetch(id)
        if row is None:
            raise ValueError(f"id {id} is not in the table, which has {self.header.rows:,} rows")
        return row
