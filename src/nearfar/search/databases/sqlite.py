"""SQLite with the extension sqlite-vec: one file ("sqlite:FILE"), without a server.

In many builds of Python, the module sqlite3 cannot load extensions. The driver is therefore apsw, which has its own
SQLite. A table has two parts: NAME with the samples, and NAME_vectors, a virtual table of sqlite-vec. Table headers
(see `TableHeader`) are stored in the table nearfar_tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from nearfar.errors import NearfarError
from nearfar.files import expand_user
from nearfar.search.databases.connection import register
from nearfar.search.databases.database import Match, Rows, TableHeader, import_driver
from nearfar.search.exact import Vectors
from nearfar.validation import Ints

PAGE = 10_000
MAX_K = 4096  # the largest number of neighbors that sqlite-vec returns
WAIT_MILLISECONDS = 30_000


@register("sqlite")
class SQLite:
    """A table of SQLite. sqlite-vec compares the query with every vector, so the search is exact."""

    kinds: ClassVar[tuple[str, ...]] = ("exact",)
    exact_up_to: ClassVar[int] = 0

    def __init__(self, place: str, *, table: str, create: bool) -> None:
        driver = import_driver("apsw", extra="sqlite")
        extension = import_driver("sqlite_vec", extra="sqlite")
        file = expand_user(place)
        if not place or (not create and not file.is_file()):
            raise NearfarError(f"sqlite:{place} is not a file: check the path")
        flags = driver.SQLITE_OPEN_READWRITE | driver.SQLITE_OPEN_CREATE if create else driver.SQLITE_OPEN_READONLY
        self._connection: Any = driver.Connection(str(file), flags=flags)
        self._connection.set_busy_timeout(WAIT_MILLISECONDS)
        self._connection.enable_load_extension(True)
        self._connection.load_extension(extension.loadable_path())
        self._connection.enable_load_extension(False)
        self._table, self._sample, self._vector = table, f'"{table}"', f'"{table}_vectors"'
        if create:
            self._run("CREATE TABLE IF NOT EXISTS nearfar_tables (name TEXT PRIMARY KEY, header TEXT NOT NULL)")

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        return (import_driver("apsw", extra="sqlite").Error,)

    def read_header(self) -> TableHeader | None:
        tables = {name for (name,) in self._run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if self._table not in tables:
            return None
        query = "SELECT header FROM nearfar_tables WHERE name = ?"
        headers = self._run(query, [self._table]) if "nearfar_tables" in tables else []
        return TableHeader.from_json(headers[0][0] if headers else None, self._table)

    def create_table(self, header: TableHeader) -> None:
        with self._connection:
            self._run(
                f"CREATE TABLE {self._sample} (id INTEGER PRIMARY KEY, label TEXT, name TEXT NOT NULL, "
                "digest INTEGER NOT NULL)"
            )
            self._run(
                f"CREATE VIRTUAL TABLE {self._vector} USING vec0(id INTEGER PRIMARY KEY, "
                f"embedding float[{header.dim}] distance_metric=cosine)"
            )
            self.write_header(header)

    def write_header(self, header: TableHeader) -> None:
        values = [self._table, header.to_json()]
        self._run("INSERT INTO nearfar_tables VALUES (?, ?) ON CONFLICT DO UPDATE SET header = excluded.header", values)

    def drop_table(self) -> None:
        if self.read_header() is not None:
            with self._connection:
                self._run(f"DROP TABLE {self._sample}")
                self._run(f"DROP TABLE {self._vector}")
                self._run("DELETE FROM nearfar_tables WHERE name = ?", [self._table])

    def digests(self) -> Iterator[tuple[Ints, Ints]]:
        last = -1
        query = f"SELECT id, digest FROM {self._sample} WHERE id > ? ORDER BY id LIMIT {PAGE}"
        while rows := self._run(query, [last]):
            columns = np.array(rows, dtype=np.int64).T
            yield columns[0], columns[1]
            last = rows[-1][0]

    def upsert(self, rows: Rows) -> None:
        ids = rows.ids.tolist()
        with self._connection:
            self._delete(ids)  # a virtual table does not support replacing rows
            samples = zip(ids, rows.labels, rows.names, rows.digests.tolist(), strict=True)
            self._connection.executemany(f"INSERT INTO {self._sample} VALUES (?, ?, ?, ?)", samples)
            vectors = zip(ids, map(bytes, rows.vectors), strict=True)
            self._connection.executemany(f"INSERT INTO {self._vector} (id, embedding) VALUES (?, ?)", vectors)

    def delete(self, ids: Ints) -> None:
        with self._connection:
            self._delete(ids.tolist())

    def _delete(self, ids: list[int]) -> None:
        for name in (self._sample, self._vector):
            self._connection.executemany(f"DELETE FROM {name} WHERE id = ?", [(id,) for id in ids])

    def build(self, header: TableHeader) -> range:
        return range(0)

    def search(self, query: Vectors, k: int, *, header: TableHeader, labels: Sequence[str] = ()) -> list[Match]:
        if k > MAX_K:
            raise NearfarError(f"sqlite-vec returns at most {MAX_K:,} neighbors, got -k {k}: use a smaller -k")
        among = f"AND id IN (SELECT id FROM {self._sample} WHERE label IN ({_marks(labels)}))" if labels else ""
        found = self._run(
            f"SELECT id, distance FROM {self._vector} WHERE embedding MATCH ? AND k = ? {among}",
            [query.tobytes(), k, *labels],
        )
        ids = [id for id, _ in found]
        samples = self._run(f"SELECT id, label, name FROM {self._sample} WHERE id IN ({_marks(ids)})", ids)
        texts = {id: (label, name) for id, label, name in samples}
        # The cosine of a zero vector is not defined. Its distance is 1, as in an index.
        return [Match(id, 1.0 if distance is None else distance, *texts[id]) for id, distance in found]

    def fetch(self, id: int) -> tuple[Match, Vectors] | None:
        rows = self._run(
            f"SELECT s.id, s.label, s.name, v.embedding FROM {self._sample} s JOIN {self._vector} v ON v.id = s.id "
            "WHERE s.id = ?",
            [id],
        )
        if not rows:
            return None
        ((id, label, name, vector),) = rows
        return Match(id, 0.0, label, name), np.frombuffer(vector, np.float32).copy()

    def close(self) -> None:
        self._connection.close()

    def _run(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(query, tuple(values)))


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
