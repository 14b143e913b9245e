"""Every database stores an index exactly, sends only changes, survives a kill, and finds what exact search finds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.errors import NearfarError
from nearfar.search import Index
from nearfar.search.databases import Database, DatabaseIndex, connect, upload
from nearfar.search.databases.upload import measure_database
from search.databases.conftest import REST_KEY, make_index

pytestmark = pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")  # of qdrant-rest
CLIENT = """
import sys
from search.databases.conftest import make_index
from nearfar.search.databases import connect, upload

address, table = sys.argv[1:]
with connect(address, table=table, create=True) as database:
    store = database.upsert
    def upsert(rows):
        store(rows)
        print("stored", flush=True)
    database.upsert = upsert
    upload(make_index(600), database, table=table, batch=10, progress=False)
"""


def contents(index: Index, database: Database, *, sample: int = 40) -> dict[int, tuple[Any, ...]]:
    """Return the hashes of all rows, with a sample of the rows in full. Check that no id is missing or listed twice."""
    parts = [zip(ids.tolist(), digests.tolist(), strict=True) for ids, digests in database.digests()]
    listed = dict(row for part in parts for row in part)
    rows: dict[int, tuple[Any, ...]] = {id: (digest,) for id, digest in listed.items()}
    for id in sorted(listed)[:: max(1, len(listed) // sample)]:
        row = database.fetch(id)
        assert row is not None
        rows[id] = (row[0].label, row[0].name, row[1].tobytes(), listed[id])
    assert sum(len(ids) for ids, _ in database.digests()) == len(listed)
    assert sorted(listed) == sorted(index.ids.tolist())
    return rows


def test_rows_are_stored_exactly_and_found_as_by_exact_search(address: str, table: str) -> None:
    index = make_index()
    queries = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    with connect(address, table=table, create=True) as database:
        result = upload(index, database, table=table, batch=70, progress=False)
        assert (result.stored, result.unchanged, result.removed) == (300, 0, 0)
        assert result.header.complete
    with connect(address, table=table) as database:
        stored = contents(index, database)
        for row, id in enumerate(index.ids.tolist()):
            if len(stored[id]) == 1:
                continue
            assert stored[id][:3] == (index.label_of(row), index.names[row], index.vectors[row].tobytes())
        opened = DatabaseIndex(database, table=table, model="weights")
        for labels in ((), ("o'wl",), ("élan", "c\td")):
            for query in queries:
                distances, ids = index.search(query[None], 12, label=labels or None)
                matches = opened.search(query, 12, label=labels)
                assert [match.id for match in matches] == ids[0].tolist()
                np.testing.assert_allclose([match.distance for match in matches], distances[0], atol=2e-6)
                assert [match.name for match in matches] == [index.names[row] for row in index.rows_of(ids[0])]
        assert len(opened.search(queries[0], 1000)) == 300  # more than there are
        assert opened.search(queries[0], 3, label=("no such class",)) == []
        with pytest.raises(ValueError, match="id 5 is not in the table, which has 300 rows"):
            opened.vector_of(5)


def test_a_second_upload_sends_only_what_has_changed(address: str, table: str) -> None:
    index = make_index()
    with connect(address, table=table, create=True) as database:
        upload(index, database, table=table, progress=False)
        again = upload(index, database, table=table, progress=False)
        assert (again.stored, again.unchanged, again.removed) == (0, 300, 0)
        before = contents(index, database)
        gone = index.ids[[3, 10]].tolist()
        index.remove(gone)
        index.names = [*index.names[:-1], "renamed"]
        (new,) = index.add(np.ones((1, 16)), labels=[2]).tolist()
        changed = upload(index, database, table=table, progress=False)
        assert (changed.stored, changed.unchanged, changed.removed) == (2, 297, 2)
        after = contents(index, database)
        assert database.fetch(int(index.ids[-2]))[0].name == "renamed"  # type: ignore[index]
        same = set(before) - {*gone, int(index.ids[-2])}
        assert {id: before[id][-1] for id in same} == {id: after[id][-1] for id in same}
        assert set(after) == {*same, int(index.ids[-2]), new}


@pytest.mark.timeout(120)
def test_a_killed_upload_continues_to_the_same_table(address: str, table: str) -> None:
    index = make_index(600)
    command = [sys.executable, "-c", CLIENT, address, table]
    tests = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{tests.parent / 'src'}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as client:
        assert client.stdout is not None
        for _ in range(6):
            assert client.stdout.readline() == b"stored\n"
        client.kill()
    with connect(address, table=table, create=True) as database:
        header = database.read_header()
        assert header is not None
        assert not header.complete
        present = sum(len(ids) for ids, _ in database.digests())
        assert 60 <= present < 600  # it was killed in the middle
        warnings: list[str] = []
        DatabaseIndex(database, table=table, say=warnings.append)
        assert "has not finished" in warnings[0]
        result = upload(index, database, table=table, progress=False)
        assert (result.stored, result.unchanged, result.removed) == (600 - present, present, 0)
        resumed, resumed_header = contents(index, database), database.read_header()
        assert measure_database(index, database, result.header, sample=20) == 1.0  # also the vectors are those
    with connect(address, table=f"{table}_whole", create=True) as database:
        upload(index, database, table=table, progress=False)
        assert resumed == contents(index, database)
        assert resumed_header == database.read_header()


def test_recall_of_the_approximate_index(address: str, table: str) -> None:
    has_index = address.startswith(("postgresql", "lancedb", "qdrant:http"))
    index = make_index(3000 if has_index else 300, 32)
    with connect(address, table=table, create=True) as database:
        kind = database.kinds[-1]
        result = upload(index, database, table=table, kind=kind, progress=False)
        assert result.header.kind == kind
        assert (result.header.effort > 0) is has_index
        assert measure_database(index, database, result.header, sample=40) >= (0.93 if has_index else 1.0)
        exact = upload(index, database, table=table, kind="exact", progress=False)
        assert (exact.stored, exact.header.effort) == (0, 0)
        assert measure_database(index, database, exact.header, sample=10) == 1.0


def test_long_vectors_do_not_exceed_the_request_limit_of_a_qdrant_server(
    qdrant_rest: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", REST_KEY)
    index = make_index(1000, 512)  # about 11 MB of JSON
    with connect(qdrant_rest, table=table, create=True) as database:
        assert upload(index, database, table=table, progress=False).stored == 1000
        contents(index, database, sample=4)


@pytest.mark.filterwarnings("ignore:Failed to obtain server version")
def test_a_qdrant_server_refuses_another_key(qdrant_rest: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "another-secret-key")
    with (
        pytest.raises(NearfarError, match="401") as error,
        connect(qdrant_rest, table=table, create=True) as database,
    ):
        upload(make_index(20), database, table=table, progress=False)
    assert "another-secret-key" not in str(error.value)


def test_tables_of_other_models_and_other_programs_are_refused(address: str, table: str) -> None:
    index = make_index(20)
    with connect(address, table=table, create=True) as database:
        with pytest.raises(NearfarError, match="there is no table"):
            DatabaseIndex(database, table=table)
        upload(index, database, table=table, progress=False)
        other = make_index(20, model="other weights")
        with pytest.raises(NearfarError, match="from other weights: choose another --table, or replace it"):
            upload(other, database, table=table, progress=False)
        with pytest.raises(NearfarError, match="was not written with the weights of this model"):
            DatabaseIndex(database, table=table, model="other weights")
        result = upload(other, database, table=table, replace_table=True, progress=False)
        assert (result.stored, result.header.model) == (20, "other weights")
        header = result.header
        database.write_header(_Foreign())  # type: ignore[arg-type]
        with pytest.raises(NearfarError, match="was not written by nearfar: choose another --table"):
            upload(index, database, table=table, replace_table=True, progress=False)
        database.write_header(replace(header, rows=0))
        database.drop_table()
        assert database.read_header() is None


class _Foreign:
    def to_json(self) -> str:
        return "a comment of another program"


def test_zero_vectors_and_missing_labels(address: str, table: str) -> None:
    index = Index.from_vectors(np.concatenate([np.zeros((1, 4)), np.eye(4)]))
    with connect(address, table=table, create=True) as database:
        result = upload(index, database, table=table, progress=False)
        matches = DatabaseIndex(database, table=table).search(np.eye(4, dtype=np.float32)[0], 5)
        assert result.stored == 5
        assert (matches[0].id, matches[0].label) == (1, None)
        assert [match.distance for match in matches] == pytest.approx([0, 1, 1, 1, 1], abs=1e-6)


def test_an_empty_index(address: str, table: str) -> None:
    empty = Index.from_vectors(np.zeros((0, 4)))
    with connect(address, table=table, create=True) as database:
        assert upload(empty, database, table=table, progress=False).stored == 0
        assert DatabaseIndex(database, table=table).search(np.ones(4, dtype=np.float32), 3) == []
