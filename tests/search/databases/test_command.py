"""`nearfar export --to` and `nearfar search --from`, and that no password is printed or written."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from command_line import done, error_line, nearfar
from nearfar.errors import NearfarError
from nearfar.search import Index, databases
from nearfar.search.databases.connection import connect
from nearfar.training import Run

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def run(vector_run: Run, vectors: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with an index."""
    path = tmp_path_factory.mktemp("runs") / "run"
    shutil.copytree(vector_run.path, path)
    assert nearfar("index", path, vectors).exit_code == 0
    return path


def failed(*arguments: object) -> str:
    result = nearfar(*arguments)
    assert SECRET not in result.output
    return error_line(result)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")  # of qdrant-rest
def test_a_search_in_the_database_prints_what_the_index_finds(run: Path, address: str, table: str) -> None:
    printed = done("export", run, "--to", address, "--table", table).splitlines()
    assert printed[0] == f"{address}, table {table}: 240 rows of 8 dimensions, exact"
    assert printed[1] == "240 stored, 0 already up to date, 0 removed"
    again = done("export", run, "--to", address, "--table", table).splitlines()
    assert again[1] == "0 stored, 240 already up to date, 0 removed"
    place = ("--from", address, "--table", table)
    for options in (("-k", 6), ("-k", 5, "--label", "kind 03", "--label", "kind 04")):
        assert done("search", run, 30, *options, *place) == done("search", run, 30, *options)
    expected, actual = (json.loads(done("search", run, 7, "--json", *more)) for more in ((), place))
    assert actual[0]["query"] == expected[0]["query"] == "7"
    for ours, theirs in zip(expected[0]["results"], actual[0]["results"], strict=True):
        assert theirs.pop("distance") == pytest.approx(ours.pop("distance"), abs=2e-6)
        assert theirs == ours
    assert "id 999 is not in the table" in failed("search", run, 999, *place)
    assert "there is no table no_such" in failed("search", run, 7, "--from", address, "--table", "no_such")


def test_passwords_are_refused_in_addresses_and_never_shown(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg", reason="pip install -e '.[postgres]'")
    for address in (
        f"postgresql://me:{SECRET}@localhost/shop",
        f"postgresql://localhost/shop?password={SECRET}",
        f"qdrant:http://me:{SECRET}@localhost:6333",
    ):
        assert "contains a password" in failed("export", run, "--to", address)
        assert "contains a password" in failed("search", run, 7, "--from", address)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    line = failed("search", run, 7, "--from", "postgresql://127.0.0.1:1/shop?connect_timeout=2")
    assert line.startswith("Error: postgresql://127.0.0.1:1/shop?connect_timeout=2, table nearfar: connection")
    monkeypatch.setenv("QDRANT_API_KEY", SECRET)
    pytest.importorskip("qdrant_client", reason="pip install -e '.[qdrant]'")
    with pytest.warns(UserWarning, match="insecure connection"):
        assert "Connection refused" in failed("export", run, "--to", "qdrant:http://127.0.0.1:1")
    written = [path for path in run.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert written == []


def test_mistakes_are_explained(run: Path, tmp_path: Path) -> None:
    assert "unknown database 'sqlit'; did you mean 'sqlite'?" in failed("export", run, "--to", "sqlit:x.db")
    assert "--table a b must have at most 48 letters" in failed("export", run, "--to", "sqlite:x.db", "--table", "a b")
    assert "--table applies only to a database" in failed("search", run, 7, "--table", "x")
    assert "remove --index" in failed("search", run, 7, "--from", "sqlite:x.db", "--index", run / "index")
    assert "remove --html" in failed("search", run, 7, "--from", "sqlite:x.db", "--html", "x.html")
    assert "remove --out" in failed("export", run, "--to", "sqlite:x.db", "--out", tmp_path)
    for kind in ("sqlite", "lancedb", "qdrant"):
        missing = tmp_path / "missing"
        assert f"{kind}:{missing} is n" in failed("search", run, 7, "--from", f"{kind}:{missing}")
        assert not missing.exists()
    here = f"sqlite:{tmp_path / 'x.db'}"
    assert "this database supports only exact search" in failed("export", run, "--to", here, "--kind", "hnsw")


def test_a_missing_driver_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "apsw", None)
    with (
        pytest.raises(NearfarError, match=r"the database needs apsw: pip install -e '\.\[sqlite\]'"),
        connect(f"sqlite:{tmp_path / 'x.db'}", create=True),
    ):
        pass


def test_the_registry_lists_all_databases_and_takes_new_ones() -> None:
    assert databases.names() == ["lancedb", "postgresql", "qdrant", "sqlite"]
    with pytest.raises(ValueError, match="database 'sqlite' is already registered"):
        databases.register("sqlite")(Index)  # type: ignore[type-var]
