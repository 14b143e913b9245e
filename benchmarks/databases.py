"""Queries per second and recall of the vector databases that `nearfar export --to` writes, and of nearfar's own index.

One client sends one query at a time. PostgreSQL is started from the package pgserver in a temporary folder, on a
socket, with its default settings. The other databases run in the process of the client, unless --qdrant names a server.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.search import rows_around_centers
from benchmarks.timing import machine
from nearfar.formatting import markdown_table
from nearfar.search import Index
from nearfar.search.databases import connect, upload
from nearfar.search.exact import Vectors, search_exact

K = 10
WARM_UP = 5
NAMES = ("nearfar", "postgresql", "qdrant", "lancedb", "sqlite")
DRIVERS = {"postgresql": "psycopg", "qdrant": "qdrant-client", "lancedb": "lancedb", "sqlite": "sqlite-vec"}


@dataclass(frozen=True)
class Measurement:
    """Speed and recall of one kind of search in one database."""

    name: str
    kind: str
    upload_seconds: float
    per_second: float
    p50: float
    p99: float
    recall: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the row in the report."""
        return (
            self.name,
            self.kind,
            f"{self.upload_seconds:.0f}",
            f"{self.per_second:,.0f}",
            f"{self.p50:.1f}",
            f"{self.p99:.1f}",
            f"{self.recall:.1%}",
        )


def measure(
    name: str,
    kind: str,
    seconds: float,
    search: Callable[[Vectors], list[int]],
    queries: Vectors,
    truth: list[set[int]],
) -> Measurement:
    """Time one search per query, and compare the ids that it finds with those of an exact search."""
    for query in queries[:WARM_UP]:
        search(query)
    times, found = [], 0
    for query, expected in zip(queries, truth, strict=True):
        start = time.perf_counter()
        ids = search(query)
        times.append(time.perf_counter() - start)
        found += len(expected.intersection(ids))
    result = Measurement(
        name,
        kind,
        seconds,
        len(times) / sum(times),
        1e3 * float(np.percentile(times, 50)),
        1e3 * float(np.percentile(times, 99)),
        found / (K * len(queries)),
    )
    print(" | ".join(result.cells), flush=True)
    return result


@contextmanager
def start_postgresql(folder: Path) -> Iterator[str]:
    """Start a server with pgvector for the duration of a `with` block, and yield its address."""
    pgserver: Any = __import__("pgserver")
    os.chmod(folder, 0o755)
    server = pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def measure_database(
    name: str, address: str, kinds: tuple[str, ...], index: Index, queries: Vectors, truth: list[set[int]]
) -> list[Measurement]:
    """Upload the index, and measure each kind of search on the same table."""
    results = []
    with connect(address, create=True) as database:
        for kind in kinds or database.kinds:
            start = time.perf_counter()
            header = upload(index, database, table="nearfar", kind=kind, say=print).header
            seconds = time.perf_counter() - start
            if header.effort == 0 and kind != "exact":
                continue  # the local mode of Qdrant has no index

            def search(query: Vectors, header: Any = header) -> list[int]:
                return [match.id for match in database.search(query, K, header=header)]

            results.append(measure(name, kind, seconds, search, queries, truth))
    return results


def measure_own(index: Index, queries: Vectors, truth: list[set[int]]) -> list[Measurement]:
    """Measure the exact and the HNSW index of nearfar."""
    results = []
    for kind in ("exact", "hnsw"):
        start = time.perf_counter()
        own = index if kind == "exact" else Index.from_vectors(index.vectors, kind=kind)
        seconds = time.perf_counter() - start

        def search(query: Vectors, own: Index = own) -> list[int]:
            ids: list[int] = own.search(query[None], K)[1][0].tolist()
            return ids

        results.append(measure("nearfar index", kind, seconds, search, queries, truth))
    return results


def merge(path: Path, results: list[Measurement]) -> list[Measurement]:
    """Merge results into a JSON file, sorted in the order of NAMES. Return all results of the file."""
    earlier = [Measurement(**figures) for figures in json.loads(path.read_text())] if path.is_file() else []
    known = {(result.name, result.kind) for result in results}
    merged = [result for result in earlier if (result.name, result.kind) not in known] + results
    merged.sort(key=lambda result: NAMES.index(result.name.split()[0]))
    path.write_text(json.dumps([asdict(result) for result in merged], indent=1) + "\n")
    return merged


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vectors", type=int, default=100_000, help="number of vectors (default 100000)")
    parser.add_argument("--dim", type=int, default=128, help="dimension of the vectors (default 128)")
    parser.add_argument("--queries", type=int, default=500, help="number of queries (default 500)")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, help="databases to measure (default all)")
    parser.add_argument("--qdrant", help="address of a Qdrant server, such as http://localhost:6333")
    parser.add_argument("--note", default="", help="a sentence to add to the report")
    parser.add_argument("--json", type=Path, help="merge the results into this file, and report all of its results")
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    index = Index.from_vectors(rows_around_centers(options.vectors, options.dim, seed=1), kind="exact")
    queries = rows_around_centers(options.queries, options.dim, seed=2)
    truth = [set(ids) for ids in search_exact(queries, np.asarray(index.vectors), K)[1].tolist()]
    results = measure_own(index, queries, truth) if "nearfar" in options.only else []
    with tempfile.TemporaryDirectory(prefix="nearfar-databases-", ignore_cleanup_errors=True) as folder:
        for name in (name for name in options.only if name != "nearfar"):
            label = f"{name} ({DRIVERS[name]} {version(DRIVERS[name])})"
            if name == "postgresql":
                with start_postgresql(Path(folder)) as address:
                    results += measure_database(label, address, (), index, queries, truth)
                continue
            address = f"{name}:{options.qdrant if name == 'qdrant' and options.qdrant else Path(folder) / name}"
            results += measure_database(label, address, (), index, queries, truth)
    if options.json:
        results = merge(options.json, results)
    lines = [
        "# Vector databases",
        "",
        f"This page compares searches for the {K} nearest neighbors of {len(queries):,} queries among {len(index):,} "
        f"vectors of {index.dim} dimensions. The vectors are random vectors around 1,000 centers, and the queries are "
        "not among them. One client sends one query at a time. Recall is the fraction of the exact neighbors that are "
        "found. If a database has two rows, the second search uses the table of the first, so its upload time is only "
        "the time to build the index and to tune the search effort. p50 is the median and p99 the 99th percentile of "
        f"the time of a query. Versions and machine: {machine()}.",
        "",
        *([options.note, ""] if options.note else []),
        markdown_table(
            ["database", "search", "upload s", "queries/s", "p50 ms", "p99 ms", f"recall@{K}"],
            [result.cells for result in results],
        ),
        "",
        "Made by",
        "",
        f"    python -m benchmarks.databases --vectors {options.vectors} --dim {options.dim} "
        f"--queries {options.queries} --json docs/benchmarks/databases.json --markdown docs/benchmarks/databases.md",
        "",
    ]
    if options.markdown:
        options.markdown.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
