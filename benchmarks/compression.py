"""Recall, bytes per vector and queries per second of compressed indexes, compared with faiss at equal bytes.

    python -m benchmarks.compression cub.npz clinc150.csv random --markdown docs/benchmarks/compression.md

"random" stands for random unit vectors around 1,000 centers, as in `benchmarks.search`. Texts are embedded by
all-MiniLM-L6-v2. All searches use one thread and are called with one query and with a batch of queries. Recall@10 is
the fraction of the ten exact nearest neighbors that is found. Only the compressed vectors, which must be in memory,
count as bytes. The exact vectors, with which candidates are re-scored, can stay on disk.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.search import rows_around_centers
from benchmarks.timing import machine
from nearfar.data import open_data
from nearfar.formatting import markdown_table
from nearfar.search.approximate import faiss
from nearfar.search.exact import Vectors
from nearfar.search.index import Index
from nearfar.search.inputs import as_unit_vectors
from nearfar.training.pretrained_embeddings import embed_pretrained
from nearfar.validation import Ints

K = 10
RANDOM = "random"
BATCH = 64
ENOUGH = 10.0  # CPU seconds after which a measurement stops
Search = Callable[[Vectors], Ints]


def queries_per_second(search: Search, queries: Vectors, size: int) -> float:
    """Return the queries per CPU second of calls with `size` queries."""
    search(queries[:size])
    start, count = time.process_time(), 0
    while count < len(queries) and time.process_time() - start < ENOUGH:
        search(queries[count : count + size])
        count += size
    return count / (time.process_time() - start)


def recall(found: Ints, truth: Ints) -> float:
    """Return the fraction of the exact neighbors that were found."""
    return float(np.mean([np.isin(wanted, rows).mean() for wanted, rows in zip(truth, found, strict=True)]))


def faiss_indexes(vectors: Vectors) -> dict[str, tuple[Any, float]]:
    """Return faiss indexes as large as nearfar's int8 and binary indexes, with their bytes per vector."""
    dim = vectors.shape[1]
    scalar = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    product = faiss.IndexPQ(dim, dim // 8, 8, faiss.METRIC_INNER_PRODUCT)
    product.pq.cp.max_points_per_centroid = 64
    indexes = {"faiss SQ8": (scalar, float(dim)), "faiss PQ, 8 bits per 8 dimensions": (product, dim / 8)}
    for index, _ in indexes.values():
        index.train(vectors[:100_000])
        index.add(vectors)
    return indexes


def measure(vectors: Vectors, queries: Vectors) -> list[tuple[str, float, float, float, float]]:
    """Return (name, bytes per vector, recall, queries/s with single queries, queries/s in batches) for each index."""
    exact = Index.from_vectors(vectors, kind="exact")
    truth = exact.search(queries, K)[1]
    searches: dict[str, tuple[Search, float]] = {"exact": (lambda q: exact.search(q, K)[1], 4.0 * exact.dim)}
    efforts = {}
    for kind, size in (("int8", exact.dim), ("binary", exact.dim / 8)):
        index = Index.from_vectors(vectors, kind=kind)
        assert index.approximate is not None
        efforts[float(size)] = index.approximate.effort
        name = f"{kind}, {index.approximate.effort * K} candidates re-scored"
        searches[name] = (lambda q, index=index: index.search(q, K)[1], float(size))  # type: ignore[misc]
    for name, (theirs, size) in faiss_indexes(vectors).items():
        refined = faiss.IndexRefineFlat(theirs, faiss.swig_ptr(vectors))
        refined.k_factor = efforts[size]
        searches[name] = (lambda q, theirs=theirs: theirs.search(q, K)[1], size)  # type: ignore[misc]
        searches[f"{name}, {efforts[size] * K} candidates re-scored"] = (
            lambda q, refined=refined: refined.search(q, K)[1],  # type: ignore[misc]
            size,
        )
    rows = []
    for name, (search, size) in searches.items():
        found = np.concatenate([search(queries[i : i + BATCH]) for i in range(0, len(queries), BATCH)])
        speeds = [queries_per_second(search, queries, count) for count in (1, BATCH)]
        rows.append((name, size, recall(found, truth), speeds[0], speeds[1]))
        print(
            f"{name}: {size:g} bytes, recall {rows[-1][2]:.1%}, {speeds[0]:.0f} and {speeds[1]:.0f} queries/s",
            flush=True,
        )
    return rows


def load_vectors(data: str, count: int, dim: int) -> Vectors:
    """Return unit vectors [N, d] in random order: random ones, vectors of a file, or embedded texts."""
    if data == RANDOM:
        return rows_around_centers(count, dim, seed=1)
    manifest = open_data(data)
    if manifest.kind not in ("features", "text"):
        raise SystemExit(f"{data}: has neither vectors nor texts")
    vectors = as_unit_vectors("vectors", embed_pretrained(manifest).numpy())
    return vectors[np.random.default_rng(0).permutation(len(vectors))]


def describe(data: str) -> str:
    """Return what the vectors of a section are."""
    name = Path(data).name
    if data == RANDOM:
        return "random vectors around 1,000 centers"
    return f"{name}, embedded by all-MiniLM-L6-v2" if open_data(data).kind == "text" else name


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", nargs="*", default=[RANDOM], help='data of vectors or texts, or "random" (default)')
    parser.add_argument("--count", type=int, default=1_000_000, help="number of random vectors (default 1,000,000)")
    parser.add_argument("--dim", type=int, default=128, help="dimension of the random vectors (default 128)")
    parser.add_argument("--queries", type=int, default=256, help="number of queries (default 256)")
    parser.add_argument("--note", default="", help="a sentence to add to the report")
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    sections: list[str] = []
    for data in options.data:
        everything = load_vectors(data, options.count + options.queries, options.dim)
        vectors, queries = everything[: -options.queries], everything[-options.queries :]
        print(f"{describe(data)}, {len(vectors):,} x {vectors.shape[1]}", flush=True)
        cells = [
            (name, f"{size:g}", f"{100 * found:.1f}", f"{one:,.0f}", f"{many:,.0f}")
            for name, size, found, one, many in measure(np.ascontiguousarray(vectors), queries)
        ]
        header = ["index", "bytes per vector", "recall@10", "queries/s", f"queries/s, {BATCH} at once"]
        title = f"## {len(vectors):,} vectors of {vectors.shape[1]} dimensions: {describe(data)}"
        sections += [title, "", markdown_table(header, cells), ""]
        if options.markdown:
            options.markdown.write_text("\n".join([*_introduction(options), *sections, *_command(options)]))


def _introduction(options: argparse.Namespace) -> list[str]:
    return [
        "# Compressed indexes",
        "",
        f"This page compares compressed indexes for {options.queries} queries that are not in the index (faiss "
        f"{faiss.__version__}, {machine()}). Recall@10 is the percentage of the exact neighbors that are found. Speed "
        f"is in queries per CPU second, with 1 and with {BATCH} queries per call. Bytes per vector count only the "
        "compressed vectors, because the exact vectors can stay on disk.",
        "",
        "The int8 and binary indexes of nearfar re-score their candidates with the exact vectors. faiss is measured "
        "without re-scoring (SQ8, PQ) and with it (IndexRefineFlat), with as many candidates as the index of nearfar "
        "of the same size.",
        "",
        *([options.note, ""] if options.note else []),
    ]


def _command(options: argparse.Namespace) -> list[str]:
    names = " ".join(Path(data).name for data in options.data)
    random = f" --count {options.count} --dim {options.dim}" if RANDOM in options.data else ""
    return ["Made by", "", f"    python -m benchmarks.compression {names}{random} --queries {options.queries}", ""]


if __name__ == "__main__":
    main()
