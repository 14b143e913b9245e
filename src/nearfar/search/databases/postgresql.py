"""PostgreSQL with the extension pgvector, through psycopg.

The address is a libpq connection URL, such as postgresql://user@host:5432/database. Parts that the URL omits are read
from the libpq environment variables: PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSWORD and so on. The table header (see
`TableHeader`) is stored as the comment of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from nearfar.search.databases.connection import register
from nearfar.search.databases.database import Match, Rows, TableHeader, import_driver
from nearfar.search.exact import Vectors
from nearfar.validation import Ints

# The largest number of dimensions that pgvector can index, and the values of hnsw.ef_search from default to maximum.
MAX_INDEXED_DIM = 2000
EFFORTS = range(40, 1001)
PAGE = 10_000
COLUMNS = "id, label, name, digest, embedding"


@register("postgresql")
class Postgresql:
    """A PostgreSQL table with the columns `id`, `label`, `name`, `digest` and `embedding`.

    The vectors have unit length, so their inner product, which pgvector computes fastest, equals their cosine.
    """

    kinds: ClassVar[tuple[str, ...]] = ("exact", "hnsw")
    exact_up_to: ClassVar[int] = 10_000

    def __init__(self, place: str, *, table: str, create: bool) -> None:
        psycopg = import_driver("psycopg", extra="postgres")
        self._sql = import_driver("psycopg.sql", extra="postgres")
        self._table = table
        self._connection: Any = psycopg.connect(f"postgresql:{place}" if place else "", autocommit=True)
        if create:
            self._connection.execute("SET client_min_messages = warning")
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        return (import_driver("psycopg", extra="postgres").Error,)

    def read_header(self) -> TableHeader | None:
        query = "SELECT c.oid, obj_description(c.oid) FROM (SELECT to_regclass(%s) AS oid) AS c"
        ((oid, comment),) = self._run(query, [self._name.as_string()])
        return None if oid is None else TableHeader.from_json(comment, self._table)

    def create_table(self, header: TableHeader) -> None:
        with self._connection.transaction():
            self._run(
                "CREATE TABLE {table} (id bigint PRIMARY KEY, label text, name text NOT NULL, digest bigint NOT NULL, "
                f"embedding vector({header.dim}) NOT NULL)"
            )
            self._run("CREATE INDEX ON {table} (label)")
            self.write_header(header)

    def write_header(self, header: TableHeader) -> None:
        self._run("COMMENT ON TABLE {table} IS {comment}", comment=header.to_json())

    def drop_table(self) -> None:
        if self.read_header() is not None:
            self._run("DROP TABLE {table}")

    def digests(self) -> Iterator[tuple[Ints, Ints]]:
        last = -1
        while rows := self._run(f"SELECT id, digest FROM {{table}} WHERE id > %s ORDER BY id LIMIT {PAGE}", [last]):
            columns = np.array(rows, dtype=np.int64).T
            yield columns[0], columns[1]
            last = rows[-1][0]

    def upsert(self, rows: Rows) -> None:
        values = zip(
            rows.ids.tolist(), rows.labels, rows.names, rows.digests.tolist(), map(_as_text, rows.vectors), strict=True
        )
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(self._compose("CREATE TEMP TABLE batch (LIKE {table}) ON COMMIT DROP"))
            with cursor.copy(f"COPY batch ({COLUMNS}) FROM STDIN") as copy:
                for value in values:
                    copy.write_row(value)
            cursor.execute(
                self._compose(
                    f"INSERT INTO {{table}} ({COLUMNS}) SELECT {COLUMNS} FROM batch ON CONFLICT (id) DO UPDATE SET "
                    "label = excluded.label, name = excluded.name, digest = excluded.digest, "
                    "embedding = excluded.embedding"
                )
            )

    def delete(self, ids: Ints) -> None:
        self._run("DELETE FROM {table} WHERE id = ANY(%s)", [ids.tolist()])

    def build(self, header: TableHeader) -> range:
        if header.kind == "exact" or header.dim > MAX_INDEXED_DIM:
            self._run("DROP INDEX IF EXISTS {index}")
        else:
            self._run("CREATE INDEX IF NOT EXISTS {index} ON {table} USING hnsw (embedding vector_ip_ops)")
        self._run("VACUUM ANALYZE {table}")
        return range(0) if header.kind == "exact" or header.dim > MAX_INDEXED_DIM else EFFORTS

    def search(self, query: Vectors, k: int, *, header: TableHeader, labels: Sequence[str] = ()) -> list[Match]:
        # The index returns at most ef_search rows, and a filter then removes some of them. A search with a filter or a
        # large k therefore does not use the index, so it is exact.
        effort = max(header.effort, k)
        is_exact = header.effort == 0 or bool(labels) or effort >= EFFORTS.stop
        option = "enable_indexscan" if is_exact else "hnsw.ef_search"
        condition = "WHERE label = ANY(%s) " if labels else ""
        with self._connection.transaction():
            self._run(f"SET LOCAL {option} = {'off' if is_exact else effort}")
            rows = self._run(
                f"SELECT id, 1 + (embedding <#> %s::vector), label, name FROM {{table}} {condition}"
                "ORDER BY embedding <#> %s::vector LIMIT %s",
                [_as_text(query), *([list(labels)] if labels else []), _as_text(query), k],
            )
        return [Match(*row) for row in rows]

    def fetch(self, id: int) -> tuple[Match, Vectors] | None:
        rows = self._run("SELECT id, 0.0::float8, label, name, embedding::text FROM {table} WHERE id = %s", [id])
        if not rows:
            return None
        *match, text = rows[0]
        return Match(*match), np.array(text[1:-1].split(","), dtype=np.float32)

    def close(self) -> None:
        self._connection.close()

    @property
    def _name(self) -> Any:
        return self._sql.Identifier(self._table)

    def _compose(self, query: str, **values: str) -> Any:
        index = self._sql.Identifier(f"{self._table}_embedding")
        literals = {name: self._sql.Literal(value) for name, value in values.items()}
        return self._sql.SQL(query).format(table=self._name, index=index, **literals)

    def _run(self, query: str, parameters: Sequence[Any] | None = None, **values: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(self._compose(query, **values), parameters)
        return cursor.fetchall() if cursor.description is not None else []


def _as_text(vector: Vectors) -> str:
    """Return a vector in the text format of pgvector. Nine significant digits recover every float32 exactly."""
    return "[" + ",".join(map("%.9g".__mod__, vector.tolist())) + "]"
