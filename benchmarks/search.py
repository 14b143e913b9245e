"""Search time compared with calling faiss directly: exact search with IndexFlatIP, and HNSW on the same graph.

    python -m benchmarks.search --markdown docs/benchmarks/search.md

faiss and nearfar are called in turn with one thread. The script reports the lower quartile of the CPU time over many
calls, because other work on the machine hardly affects it. The indexed vectors are unit vectors around random centers.
The queries are not normalized: nearfar normalizes them itself, and for faiss the script calls normalize_L2 on a copy.
nearfar also does work that faiss leaves to its caller: it checks the queries, orders neighbors of equal distance so
that the result does not depend on the batch, and maps indices to ids.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import machine
from nearfar.formatting import markdown_table
from nearfar.search.approximate import CONSTRUCTION, LINKS, faiss, numpy_search
from nearfar.search.exact import Vectors
from nearfar.search.index import Index
from nearfar.search.inputs import as_unit_vectors

K = 10
# number of CPU seconds after which a comparison stops
ENOUGH = 20.0
# number of different queries
DISTINCT = 200
Row = tuple[str, int, int, float, float]


def rows_around_centers(count: int, dim: int, *, seed: int, centers: int = 1000) -> Vectors:
    """Return `count` random unit vectors around `centers` centers. The centers are the same for every seed."""
    middle = np.random.default_rng(0).standard_normal((centers, dim), dtype=np.float32)
    rng = np.random.default_rng(seed)
    rows = middle[rng.integers(0, centers, count)]
    rows += 1.5 * rng.standard_normal((count, dim), dtype=np.float32)
    return as_unit_vectors("rows", rows)


def cpu_ms(calls: dict[str, Callable[[Vectors], object]], batches: list[Vectors], repeats: int) -> dict[str, float]:
    """Return the CPU milliseconds of each call: the lower quartile over batches and repeats.

    The calls alternate from batch to batch, so that no call benefits from data that another call has just loaded into
    the CPU cache for the same batch.
    """
    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in names}
    first = time.process_time()
    for turn in range(repeats):
        # stop only when every call has searched for every batch equally often
        if turn % len(names) == 0 and turn and time.process_time() - first > ENOUGH:
            break
        for place, batch in enumerate(batches):
            name = names[(place + turn) % len(names)]
            start = time.process_time()
            calls[name](batch)
            taken[name].append(1e3 * (time.process_time() - start))
    return {name: float(np.percentile(times, 25)) for name, times in taken.items()}


def compare(what: str, index: Index, direct: Callable[[Vectors], Any], sizes: list[int], repeats: int) -> list[Row]:
    """Measure the milliseconds of faiss and nearfar for each batch size in `sizes`.

    Args:
        what: Name of the kind of index, for the table.
        index: Index of nearfar.
        direct: A function that searches for normalized queries with faiss.
        sizes: Numbers of queries per batch.
        repeats: Maximum number of repeats.
    """
    found = []
    for size in sizes:
        # many different queries: the neighbors of repeated queries would already be in the CPU cache
        asked = 3 * rows_around_centers(max(size, DISTINCT), index.dim, seed=size)
        batches = [asked[start : start + size] for start in range(0, len(asked) - size + 1, size)]
        calls: dict[str, Callable[[Vectors], object]] = {
            "faiss": lambda queries: direct(_unit(queries)),
            "nearfar": lambda queries: index.search(queries, K),
        }
        best = cpu_ms(calls, batches, repeats)
        found.append((what, len(index), size, best["faiss"], best["nearfar"]))
        ratio = best["nearfar"] / best["faiss"]
        print(f"{what}, {size} queries: {best['faiss']:.2f} ms, {best['nearfar']:.2f} ms, {ratio:.2f}x", flush=True)
    return found


def _unit(queries: Vectors) -> Vectors:
    rows: Vectors = queries.copy()
    faiss.normalize_L2(rows)
    return rows


def exact(count: int, dim: int, sizes: list[int], repeats: int) -> list[Row]:
    """Compare exact search with IndexFlatIP, and check that both find neighbors at the same distances."""
    index = Index.from_vectors(rows_around_centers(count, dim, seed=1), kind="exact")
    flat = faiss.IndexFlatIP(dim)
    flat.add(index.vectors)
    queries = rows_around_centers(5, dim, seed=2)
    theirs, ours = flat.search(queries, K)[0], 1 - index.search(queries, K)[0]
    if np.abs(theirs - ours).max() > 1e-5:
        raise SystemExit(f"faiss and nearfar differ by {np.abs(theirs - ours).max():.1e}")
    return compare("exact", index, lambda q: flat.search(q, K), sizes, repeats)


def hnsw(count: int, dim: int, sizes: list[int], repeats: int) -> tuple[list[Row], float, int]:
    """Compare HNSW search with faiss, with the same graph and efSearch. Return the times, the recall and efSearch."""
    index = Index.from_vectors(rows_around_centers(count, dim, seed=1), kind="hnsw")
    assert index.approximate is not None
    graph, effort = index.approximate.faiss, index.approximate.effort
    options = faiss.SearchParametersHNSW(efSearch=effort)
    search = numpy_search(graph)
    found = compare("HNSW", index, lambda q: search(q, K, params=options), sizes, repeats)
    return found, index.measure(), effort


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--exact", type=int, default=1_000_000, help="number of vectors in the exact index")
    parser.add_argument("--hnsw", type=int, default=100_000, help="number of vectors in the HNSW index")
    parser.add_argument("--dim", type=int, default=128, help="dimension of the vectors (default 128)")
    parser.add_argument(
        "--queries", type=int, nargs="+", default=[1, 10, 100], help="numbers of queries per call (default 1 10 100)"
    )
    parser.add_argument(
        "--repeats", type=int, default=40, help="repeats of each batch (default 40); fewer if they take more than 20 s"
    )
    parser.add_argument(
        "--note", default="", help="a sentence to add to the report, for example what else ran on the machine"
    )
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rows = exact(options.exact, options.dim, options.queries, options.repeats)
    graph, recall, effort = hnsw(options.hnsw, options.dim, options.queries, options.repeats)
    cells = [
        (what, f"{count:,}", str(size), f"{theirs:.2f}", f"{ours:.2f}", f"{ours / theirs:.2f}")
        for what, count, size, theirs, ours in [*rows, *graph]
    ]
    sizes = " ".join(map(str, options.queries))
    lines = [
        "# Search time compared with faiss",
        "",
        f"The table shows the CPU milliseconds to find the {K} nearest neighbors by cosine in {options.dim} dimensions "
        "(lower quartile of "
        f"many calls, faiss {faiss.__version__}, {machine()}). Exact search is compared with IndexFlatIP. HNSW is "
        f"compared with faiss on the same graph (M {LINKS}, efConstruction {CONSTRUCTION}, efSearch {effort}: "
        f"recall@{K} {recall:.1%}). All times include the normalization of the queries. "
        "The goal is that nearfar takes at most 1.10 times as long as faiss.",
        "",
        *([options.note, ""] if options.note else []),
        markdown_table(["index", "vectors", "queries", "faiss", "nearfar", "ratio"], cells),
        "",
        "With four or more queries, the exact search of nearfar uses block-wise matrix products in torch instead of "
        "faiss. The additional work of nearfar (checking the queries, ordering neighbors of equal distance, mapping "
        "indices to ids) is noticeable only if the search itself is short.",
        "",
        "Generated by",
        "",
        f"    python -m benchmarks.search --exact {options.exact} --hnsw {options.hnsw} --dim {options.dim} "
        f"--queries {sizes} --repeats {options.repeats} --markdown docs/benchmarks/search.md",
        "",
    ]
    if options.markdown:
        options.markdown.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
