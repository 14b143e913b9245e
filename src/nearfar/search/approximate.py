"""Approximate candidates from faiss: a graph (HNSW) or compressed lists (IVF-PQ), with parameters chosen by size.

What faiss finds is only candidates: they are ranked by their exact cosine afterwards, so that IVF-PQ, whose codes are
rough, gets most of its recall back. A graph knows the cosines already; there only near ties are ranked again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.search.nearest import Floats, Found

# its type stubs lack half of it
faiss: Any = import_module("faiss")

APPROXIMATE = ("hnsw", "ivf-pq")
KINDS = ("exact", *APPROXIMATE)
# ours: up to here a scan takes some milliseconds; up to there the graph fits the memory of a small machine
EXACT_UP_TO, HNSW_UP_TO = 200_000, 2_000_000
LINKS, CONSTRUCTION = 32, 100
CODE_BITS = 8
FEWEST = 1 << CODE_BITS
# rows that k-means sees for each center
SEEN = 64
# candidates of IVF-PQ for each neighbor asked for
REFINED = 10
TARGET, MOST_EFFORT = 0.95, 1024


def kind_for(count: int) -> str:
    """The kind that "auto" is.

    >>> kind_for(200_000), kind_for(200_001), kind_for(5_000_000)
    ('exact', 'hnsw', 'ivf-pq')
    """
    if count <= EXACT_UP_TO:
        return "exact"
    return "hnsw" if count <= HNSW_UP_TO else "ivf-pq"


@dataclass
class Approximate:
    """A faiss index of unit rows, in the order they were added (their slots), and how hard it searches.

    `effort` is HNSW's efSearch or the number of lists that IVF-PQ looks into.
    """

    kind: str
    faiss: Any
    effort: int

    @classmethod
    def of(cls, kind: str, vectors: Floats) -> Approximate:
        """An index of these rows; `tune` then sets its effort."""
        if kind == "hnsw":
            index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = CONSTRUCTION
            index.add(vectors)
            return cls(kind, index, effort=64)
        if len(vectors) < FEWEST:
            raise ValueError(f"kind='ivf-pq' needs at least {FEWEST} vectors to learn codes from, got {len(vectors)}")
        lists = max(1, min(round(4 * math.sqrt(len(vectors))), len(vectors) // 39))
        rows = _padded(vectors)
        index = faiss.IndexIVFPQ(
            faiss.IndexFlatIP(rows.shape[1]),
            rows.shape[1],
            lists,
            rows.shape[1] // 4,
            CODE_BITS,
            faiss.METRIC_INNER_PRODUCT,
        )
        for clustering in (index.cp, index.pq.cp):
            clustering.min_points_per_centroid = 1
        index.train(_sample(rows, SEEN * max(lists, FEWEST)))
        index.add(rows)
        return cls(kind, index, effort=max(1, lists // 32))

    @property
    def most_effort(self) -> int:
        """Beyond this it does not get better, or a scan is faster."""
        return MOST_EFFORT if self.kind == "hnsw" else int(self.faiss.nlist)

    def add(self, vectors: Floats) -> None:
        """More rows, behind the others."""
        self.faiss.add(vectors if self.kind == "hnsw" else _padded(vectors))

    @property
    def exact_cosines(self) -> bool:
        """Whether the similarities of `candidates` are cosines to the last digits."""
        return self.kind == "hnsw"

    def candidates(self, queries: Floats, k: int, alive: NDArray[np.uint8] | None = None) -> Found:
        """Similarities and slots [Q, w >= k] of about the nearest rows, -1 for none; `alive` (packed bits) says which
        may be found."""
        effort, wanted = max(self.effort, 2 * k), k
        if self.kind != "hnsw":
            effort, wanted, queries = self.effort, min(REFINED * k, self.faiss.ntotal), _padded(queries)
        options = _kept_options(self.kind, effort) if alive is None else _options(self.kind, effort, alive)
        found: Found = plain_search(self.faiss)(queries, wanted, params=options)
        return found

    def tune(self, recall: Callable[[], float]) -> None:
        """Double the effort until `recall()` reaches 0.95 (ours) or effort no longer pays."""
        while recall() < TARGET and self.effort < self.most_effort:
            self.effort = min(2 * self.effort, self.most_effort)


def plain_search(index: Any) -> Any:
    """faiss's own search of arrays: faiss.contrib.torch_utils, which other libraries import, replaces it by one that
    does not take `params`."""
    return getattr(index, "search_numpy", index.search)


def _options(kind: str, effort: int, alive: NDArray[np.uint8] | None = None) -> Any:
    chosen = {} if alive is None else {"sel": faiss.IDSelectorBitmap(alive)}
    if kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=effort, **chosen)
    return faiss.SearchParametersIVF(nprobe=effort, **chosen)


# a search only reads them, so threads may share them
_kept_options = lru_cache(maxsize=64)(_options)


def _padded(vectors: Floats) -> Floats:
    """Zeros to a multiple of four columns, which no product notices: a code has a byte for four numbers."""
    missing = -vectors.shape[1] % 4
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(vectors)


def _sample(vectors: Floats, most: int) -> Floats:
    if len(vectors) <= most:
        return vectors
    return vectors[np.sort(np.random.default_rng(0).choice(len(vectors), most, replace=False))]
