"""Qdrant: a folder in local mode ("qdrant:FOLDER") or a server ("qdrant:http://localhost:6333").

The API key of a server is read from the environment variable QDRANT_API_KEY. The table header (see `TableHeader`) is
stored in the metadata of the collection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from nearfar.errors import NearfarError
from nearfar.files import expand_user
from nearfar.search.databases.connection import register
from nearfar.search.databases.database import Match, Rows, TableHeader, import_driver
from nearfar.search.exact import Vectors
from nearfar.validation import Ints

KEY = "nearfar"
API_KEY = "QDRANT_API_KEY"
EFFORTS = range(64, 1025)  # values of the search parameter hnsw_ef
PAGE = 10_000
# The largest number of coordinates in a request. As JSON, they take about 6 MB; a server accepts 32 MB by default.
MAX_COORDINATES = 1 << 18
INDEXING_SECONDS = 3600.0


@register("qdrant")
class Qdrant:
    """A Qdrant collection. The payload of a point has the keys `label`, `name` and `digest`. Local mode is exact."""

    kinds: ClassVar[tuple[str, ...]] = ("exact", "hnsw")
    exact_up_to: ClassVar[int] = 10_000

    def __init__(self, place: str, *, table: str, create: bool) -> None:
        driver = import_driver("qdrant_client", extra="qdrant")
        self._models, self._table = driver.models, table
        self._is_server = place.startswith(("http://", "https://"))
        if self._is_server:
            self._client: Any = driver.QdrantClient(url=place, api_key=os.environ.get(API_KEY) or None, timeout=60)
            return
        folder = expand_user(place)
        if not place or (not create and not folder.is_dir()):
            raise NearfarError(f"qdrant:{place} is neither a folder nor an address that starts with http://")
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._client = driver.QdrantClient(path=str(folder))

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        exceptions = import_driver("qdrant_client.http.exceptions", extra="qdrant")
        # Local mode raises a RuntimeError if another process has opened the folder.
        return (exceptions.ApiException, RuntimeError)

    def read_header(self) -> TableHeader | None:
        if not self._client.collection_exists(self._table):
            return None
        metadata = self._client.get_collection(self._table).config.metadata or {}
        return TableHeader.from_json(metadata.get(KEY), self._table)

    def create_table(self, header: TableHeader) -> None:
        models = self._models
        # The vectors have unit length, so the dot product is the cosine.
        self._client.create_collection(
            self._table,
            vectors_config=models.VectorParams(size=header.dim, distance=models.Distance.DOT),
            metadata={KEY: header.to_json()},
        )
        if self._is_server:
            self._client.create_payload_index(self._table, "label", models.PayloadSchemaType.KEYWORD, wait=True)

    def write_header(self, header: TableHeader) -> None:
        self._client.update_collection(self._table, metadata={KEY: header.to_json()})

    def drop_table(self) -> None:
        if self.read_header() is not None:
            self._client.delete_collection(self._table)

    def digests(self) -> Iterator[tuple[Ints, Ints]]:
        offset: Any = None
        while True:
            points, offset = self._client.scroll(self._table, limit=PAGE, offset=offset, with_payload=["digest"])
            ids = [point.id for point in points]
            yield np.array(ids, np.int64), np.array([int(point.payload["digest"]) for point in points], np.int64)
            if offset is None:
                return

    def upsert(self, rows: Rows) -> None:
        # A digest is stored as a string, because some JSON readers round large integers.
        payloads = [
            {"label": label, "name": name, "digest": str(digest)}
            for label, name, digest in zip(rows.labels, rows.names, rows.digests.tolist(), strict=True)
        ]
        step = max(1, MAX_COORDINATES // rows.vectors.shape[1])
        for start in range(0, len(payloads), step):
            part = slice(start, start + step)
            ids, vectors = rows.ids[part].tolist(), rows.vectors[part].tolist()
            batch = self._models.Batch(ids=ids, vectors=vectors, payloads=payloads[part])
            self._client.upsert(self._table, points=batch, wait=True)

    def delete(self, ids: Ints) -> None:
        self._client.delete(self._table, points_selector=self._models.PointIdsList(points=ids.tolist()), wait=True)

    def build(self, header: TableHeader) -> range:
        """Wait until the server has built its HNSW graph, which it does by itself once there are enough points."""
        if not self._is_server or header.kind == "exact":
            return range(0)
        deadline = time.monotonic() + INDEXING_SECONDS
        while self._client.get_collection(self._table).status != self._models.CollectionStatus.GREEN:
            if time.monotonic() > deadline:
                raise NearfarError(f"collection {self._table}: Qdrant is still building its index: try again later")
            time.sleep(0.5)
        return EFFORTS

    def search(self, query: Vectors, k: int, *, header: TableHeader, labels: Sequence[str] = ()) -> list[Match]:
        models = self._models
        is_exact = header.effort == 0 or bool(labels)
        params = models.SearchParams(exact=is_exact, hnsw_ef=None if is_exact else max(header.effort, k))
        condition = models.FieldCondition(key="label", match=models.MatchAny(any=list(labels)))
        response = self._client.query_points(
            self._table,
            query=query.tolist(),
            limit=k,
            search_params=params if self._is_server else None,
            query_filter=models.Filter(must=[condition]) if labels else None,
        )
        return [_match(point, 1 - point.score) for point in response.points]

    def fetch(self, id: int) -> tuple[Match, Vectors] | None:
        points = self._client.retrieve(self._table, [id], with_vectors=True)
        return (_match(points[0], 0.0), np.array(points[0].vector, np.float32)) if points else None

    def close(self) -> None:
        self._client.close()


def _match(point: Any, distance: float) -> Match:
    return Match(point.id, distance, point.payload["label"], point.payload["name"])
