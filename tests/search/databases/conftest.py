"""Addresses of real databases: PostgreSQL of the package pgserver; Qdrant, LanceDB and SQLite in temporary folders."""

from __future__ import annotations

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from nearfar.search import Index

EMBEDDED = {"qdrant": "qdrant_client", "lancedb": "lancedb", "sqlite": "sqlite_vec"}
QDRANT_URL = "NEARFAR_TEST_QDRANT_URL"
REST_KEY = "a-key-of-the-tests"


def skip_loudly(name: str, reason: str) -> None:
    """Skip a test, with a warning in the summary of the test run."""
    warnings.warn(f"{name.upper()} IS NOT TESTED: {reason}", stacklevel=2)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a PostgreSQL server with pgvector that listens on a socket in a temporary folder."""
    if find_spec("pgserver") is None or find_spec("psycopg") is None:
        skip_loudly("postgresql", "pgserver and psycopg are not installed: pip install -e '.[dev,postgres]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
        import pgserver

    # Not in a folder of pytest: as root, the server runs as another user, who cannot enter those folders.
    with tempfile.TemporaryDirectory(prefix="nearfar-pg-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        server = pgserver.get_server(f"{folder}/data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def qdrant_rest() -> Iterator[str]:
    """The address of the REST interface of Qdrant in front of its local mode."""
    if find_spec("qdrant_client") is None or find_spec("fastapi") is None or find_spec("uvicorn") is None:
        skip_loudly("qdrant over http", "packages are not installed: pip install -e '.[qdrant,web]'")
    from nearfar.serve.server import run_in_background
    from search.databases.qdrant_rest import create_rest_app

    with run_in_background(create_rest_app(REST_KEY)) as address:
        yield f"qdrant:{address}"


@pytest.fixture(params=["postgresql", "qdrant", "qdrant-rest", "qdrant-server", "lancedb", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of each database. The embedded ones are empty."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    if request.param == "qdrant-rest":
        monkeypatch.setenv("QDRANT_API_KEY", REST_KEY)
        return str(request.getfixturevalue("qdrant_rest"))
    if request.param == "qdrant-server":
        if not os.environ.get(QDRANT_URL):
            skip_loudly("a qdrant server", f"set {QDRANT_URL} to the address of one, such as http://localhost:6333")
        return f"qdrant:{os.environ[QDRANT_URL]}"
    if find_spec(EMBEDDED[request.param]) is None:
        skip_loudly(request.param, f"{EMBEDDED[request.param]} is not installed: pip install -e '.[{request.param}]'")
    return f"{request.param}:{tmp_path / 'database'}"


@pytest.fixture
def table() -> str:
    """A new name, because all tests share the server."""
    return f"test_{uuid.uuid4().hex[:12]}"


def make_index(rows: int = 300, dim: int = 16, *, seed: int = 0, model: str = "weights") -> Index:
    """Return an index of clustered random vectors with ids that are not consecutive, and awkward names."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(10, dim))
    labels = np.arange(rows) % 10
    index = Index.from_vectors(
        centers[labels] + rng.normal(size=(rows, dim)),
        ids=3 * rng.permutation(rows) + 7,
        labels=labels,
        classes=["o'wl", "élan", "c\td", *(f"kind {i}" for i in range(7))],
        names=[f"a \"b\" 'c'\\{row}\n日本/{row}.jpg" for row in range(rows)],
    )
    index.model = model
    return index
