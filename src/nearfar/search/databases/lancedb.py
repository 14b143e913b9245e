"""LanceDB: tables in a folder ("lancedb:FOLDER"), without a server.

The table header (see `TableHeader`) is stored in the metadata of the column `id`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from nearfar.errors import NearfarError
from nearfar.files import expand_user
from nearfar.search.databases.connection import register
from nearfar.search.databases.database import Match, Rows, TableHeader, import_driver
from nearfar.search.exact import Vectors
from nearfar.validation import Ints

KEY = "nearfar"
COLUMNS = ["id", "label", "name"]
# Settings of the k-means that forms the partitions. With LanceDB's defaults (256 vectors per partition, 50 rounds), it
# takes minutes for 100,000 vectors.
SAMPLES_PER_PARTITION, ROUNDS = 64, 20


@register("lancedb")
class LanceDB:
    """A LanceDB table with the columns `id`, `label`, `name`, `digest` and `vector`.

    The approximate index is IVF-Flat: it scans only some partitions of the vectors, but the distances are exact.
    """

    kinds: ClassVar[tuple[str, ...]] = ("exact", "ivf-flat")
    exact_up_to: ClassVar[int] = 200_000

    def __init__(self, place: str, *, table: str, create: bool) -> None:
        driver = import_driver("lancedb", extra="lancedb")
        self._arrow = import_driver("pyarrow", extra="lancedb")
        folder = expand_user(place)
        if not place or "://" in place or (not create and not folder.is_dir()):
            raise NearfarError(f"lancedb:{place} is not a folder: check the path")
        self._database: Any = driver.connect(str(folder))
        self._name = table
        self._opened: Any = None

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        import_driver("lancedb", extra="lancedb")
        return (RuntimeError, OSError)

    def read_header(self) -> TableHeader | None:
        if self._name not in self._database.list_tables().tables:
            return None
        metadata = self._table.schema.field(0).metadata or {}
        return TableHeader.from_json(metadata.get(KEY.encode(), b"").decode(), self._name)

    def create_table(self, header: TableHeader) -> None:
        arrow = self._arrow
        columns = [
            arrow.field("id", arrow.int64(), nullable=False, metadata={KEY: header.to_json()}),
            arrow.field("label", arrow.string()),
            arrow.field("name", arrow.string(), nullable=False),
            arrow.field("digest", arrow.int64(), nullable=False),
            arrow.field("vector", arrow.list_(arrow.float32(), header.dim), nullable=False),
        ]
        self._opened = self._database.create_table(self._name, schema=arrow.schema(columns))

    def write_header(self, header: TableHeader) -> None:
        self._table.update_field_metadata({"path": "id", "metadata": {KEY: header.to_json()}})

    def drop_table(self) -> None:
        if self.read_header() is not None:
            self._database.drop_table(self._name)
            self._opened = None

    def digests(self) -> Iterator[tuple[Ints, Ints]]:
        for batch in self._table.search().select(["id", "digest"]).to_batches():
            yield batch.column("id").to_numpy(), batch.column("digest").to_numpy()

    def upsert(self, rows: Rows) -> None:
        arrow = self._arrow
        flat = arrow.array(rows.vectors.reshape(-1))
        columns = {
            "id": arrow.array(rows.ids),
            "label": arrow.array(rows.labels, arrow.string()),
            "name": arrow.array(rows.names, arrow.string()),
            "digest": arrow.array(rows.digests),
            "vector": arrow.FixedSizeListArray.from_arrays(flat, rows.vectors.shape[1]),
        }
        table = arrow.table(columns, schema=self._table.schema)
        self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)

    def delete(self, ids: Ints) -> None:
        self._table.delete(f"id IN ({', '.join(map(str, ids.tolist()))})")

    def build(self, header: TableHeader) -> range:
        """Merge the files that the uploaded batches created, and build or remove the index.

        The effort is the number of partitions that a search scans.
        """
        self._table.optimize()
        if header.kind == "exact":
            for index in self._table.list_indices():
                self._table.drop_index(index.name)
            return range(0)
        partitions = max(1, min(round(math.sqrt(header.rows)), header.rows // 39))
        config = import_driver("lancedb.index", extra="lancedb").IvfFlat(
            distance_type="dot",
            num_partitions=partitions,
            max_iterations=ROUNDS,
            sample_rate=SAMPLES_PER_PARTITION,
        )
        self._table.create_index("vector", config=config)
        return range(max(1, partitions // 8), partitions + 1)

    def search(self, query: Vectors, k: int, *, header: TableHeader, labels: Sequence[str] = ()) -> list[Match]:
        # The vectors have unit length, so LanceDB's distance "dot", 1 - dot product, equals the cosine distance.
        found = self._table.search(query, vector_column_name="vector").distance_type("dot").limit(k)
        is_exact = header.effort == 0 or bool(labels)
        found = found.bypass_vector_index() if is_exact else found.nprobes(header.effort)
        if labels:
            found = found.where(f"label IN ({', '.join(map(_quote, labels))})", prefilter=True)
        rows = found.select([*COLUMNS, "_distance"]).to_arrow().to_pylist()
        return [Match(row["id"], row["_distance"], row["label"], row["name"]) for row in rows]

    def fetch(self, id: int) -> tuple[Match, Vectors] | None:
        rows = self._table.search().where(f"id = {id}").select([*COLUMNS, "vector"]).to_arrow().to_pylist()
        if not rows:
            return None
        (row,) = rows
        return Match(row["id"], 0.0, row["label"], row["name"]), np.array(row["vector"], np.float32)

    def close(self) -> None:
        self._opened = None

    @property
    def _table(self) -> Any:
        if self._opened is None:
            self._opened = self._database.open_table(self._name)
        return self._opened


def _quote(text: str) -> str:
    """Return a string as an SQL literal, with its quotes doubled."""
    return "'" + text.replace("'", "''") + "'"
