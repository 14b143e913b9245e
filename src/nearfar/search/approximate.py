"""Approximate search with faiss: HNSW (a graph), IVF-PQ (inverted lists of codes), int8 and binary (a scan of codes).

faiss only proposes candidates. All kinds except HNSW estimate similarities from compressed codes, so their candidates
are ranked again by their exact cosine; this recovers most of the lost recall. HNSW computes exact cosines up to
rounding, so its candidates are ranked again only if some cosines are too close to be ordered reliably.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.search.compressed import COMPRESSED, START_EFFORT, build_compressed
from nearfar.search.compressed import MAX_EFFORT as MAX_CANDIDATES
from nearfar.search.exact import Neighbors, Vectors, has_all
from nearfar.validation import Ints

# faiss has the type Any, because its type stubs are incomplete.
faiss: Any = import_module("faiss")

APPROXIMATE = ("hnsw", "ivf-pq", *COMPRESSED)
KINDS = ("exact", *APPROXIMATE)
# "auto" selects an exact index up to the first limit, and HNSW up to the second. We chose these limits because an exact
# scan of 200,000 vectors takes milliseconds, and an HNSW graph of 2,000,000 vectors fits into a small machine's memory.
EXACT_UP_TO, HNSW_UP_TO = 200_000, 2_000_000
LINKS, CONSTRUCTION = 32, 100  # the parameters M and efConstruction of HNSW
CODE_BITS = 8
MIN_VECTORS = 1 << CODE_BITS
# K-means is trained on at most this many vectors per cluster center.
SAMPLES_PER_CENTER = 64
# Number of IVF-PQ candidates for each requested neighbor.
CANDIDATES_PER_NEIGHBOR = 10
TARGET_RECALL, MAX_EFFORT = 0.95, 1024


def choose_kind(count: int) -> str:
    """Return the index kind that "auto" selects for `count` vectors.

    >>> choose_kind(200_000), choose_kind(200_001), choose_kind(5_000_000)
    ('exact', 'hnsw', 'ivf-pq')
    """
    if count <= EXACT_UP_TO:
        return "exact"
    return "hnsw" if count <= HNSW_UP_TO else "ivf-pq"


class ApproximateIndex:
    """A faiss index of unit vectors.

    The faiss index numbers its vectors in the order in which they were added, and vectors are never removed from it.
    These numbers are called slots.

    Attributes:
        kind: "hnsw", "ivf-pq", "int8" or "binary".
        faiss: The index object of faiss.
        effort: How thoroughly to search. For HNSW, the parameter efSearch, which is raised to 2 * k if it is smaller;
            for IVF-PQ, the number of lists to scan; for compressed vectors, the number of candidates per requested
            neighbor.
        slots: For each slot, the row of its vector in `Index.vectors`, or -1 if that vector was removed from the
            `Index`. None if slot i is row i for all i.
    """

    def __init__(self, kind: str, faiss_index: Any, effort: int, slots: Ints | None = None) -> None:
        self.kind, self.faiss, self.effort, self.slots = kind, faiss_index, effort, slots
        self._present_bits: NDArray[np.uint8] | None = None

    @classmethod
    def build(cls, kind: str, vectors: Vectors) -> ApproximateIndex:
        """Build an index of the given vectors. Call `tune` afterwards to choose the search effort."""
        if kind == "hnsw":
            index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = CONSTRUCTION
            index.add(vectors)
            return cls(kind, index, effort=64)
        if kind in COMPRESSED:
            return cls(kind, build_compressed(kind, _pad(vectors)), effort=START_EFFORT[kind])
        if len(vectors) < MIN_VECTORS:
            raise ValueError(f"kind='ivf-pq' needs at least {MIN_VECTORS} vectors to train on, got {len(vectors)}")
        lists = max(1, min(round(4 * math.sqrt(len(vectors))), len(vectors) // 39))
        x = _pad(vectors)
        index = faiss.IndexIVFPQ(
            faiss.IndexFlatIP(x.shape[1]),
            x.shape[1],
            lists,
            x.shape[1] // 4,
            CODE_BITS,
            faiss.METRIC_INNER_PRODUCT,
        )
        for clustering in (index.cp, index.pq.cp):
            clustering.min_points_per_centroid = 1
        index.train(_sample(x, SAMPLES_PER_CENTER * max(lists, MIN_VECTORS)))
        index.add(x)
        return cls(kind, index, effort=max(1, lists // 32))

    @property
    def max_effort(self) -> int:
        """The largest effort that `tune` sets: 1,024 for HNSW, and the number of lists for IVF-PQ.

        For compressed vectors, it is 4,096 or a tenth of the number of vectors, whichever is smaller, but at least the
        initial effort.
        """
        if self.kind in COMPRESSED:
            return int(max(START_EFFORT[self.kind], min(MAX_CANDIDATES, self.faiss.ntotal // 10)))
        return MAX_EFFORT if self.kind == "hnsw" else int(self.faiss.nlist)

    @property
    def has_exact_cosines(self) -> bool:
        """Whether the similarities that `candidates` returns are cosines, up to rounding."""
        return self.kind == "hnsw"

    @property
    def removed_share(self) -> float:
        """The fraction of slots whose vector was removed."""
        return 0.0 if self.slots is None or not len(self.slots) else float((self.slots < 0).mean())

    def add(self, vectors: Vectors, *, first_row: int) -> None:
        """Add vectors. Their rows in `Index.vectors` are consecutive and start at `first_row`."""
        self.faiss.add(vectors if self.kind == "hnsw" else _pad(vectors))
        if self.slots is not None:
            self.slots = np.concatenate([self.slots, first_row + np.arange(len(vectors))])
            self._present_bits = None

    def remove(self, keep: NDArray[np.bool_]) -> None:
        """Hide the rows where `keep` [N] is False, and renumber the remaining rows from 0."""
        slots = np.arange(len(keep)) if self.slots is None else self.slots
        new_rows = np.where(keep, np.cumsum(keep) - 1, -1)
        self.slots = np.where(slots < 0, -1, new_rows[slots])
        self._present_bits = None

    def candidates(self, queries: Vectors, k: int) -> Neighbors:
        """Return similarities and rows, both [Q, w], of the approximately nearest vectors.

        The width w is k for HNSW, up to 10 * k for IVF-PQ, and about effort * k for compressed vectors (more if vectors
        were removed). The row is -1 where faiss finds fewer than w vectors, and for vectors that were removed.
        """
        if self.kind in COMPRESSED:
            return self._compressed_candidates(queries, k)
        effort, width = max(self.effort, 2 * k), k
        if self.kind != "hnsw":
            effort, width = self.effort, min(CANDIDATES_PER_NEIGHBOR * k, self.faiss.ntotal)
            queries = _pad(queries)
        if self.slots is None:
            result: Neighbors = numpy_search(self.faiss)(queries, width, params=_shared_options(self.kind, effort))
            return result
        if self._present_bits is None:
            self._present_bits = np.packbits(self.slots >= 0, bitorder="little")
        options = _search_options(self.kind, effort, self._present_bits)
        similarity, slots = numpy_search(self.faiss)(queries, width, params=options)
        return similarity, self.slots[slots] if has_all(slots) else np.where(slots < 0, -1, self.slots[slots])

    def _compressed_candidates(self, queries: Vectors, k: int) -> Neighbors:
        """Compare the queries with the codes of all compressed vectors, and return the most similar candidates.

        The codes of removed vectors are scanned too, so more candidates are requested to make up for them.
        """
        width = min(math.ceil(self.effort * k / (1 - self.removed_share)), self.faiss.ntotal)
        similarity, slots = numpy_search(self.faiss)(_pad(queries), width)
        if self.slots is None:
            return similarity, slots
        return similarity, np.where(slots < 0, -1, self.slots[slots])

    def tune(self, measure_recall: Callable[[], float]) -> None:
        """Double the effort until `measure_recall()` returns at least 0.95 or the effort reaches its maximum."""
        while measure_recall() < TARGET_RECALL and self.effort < self.max_effort:
            self.effort = min(2 * self.effort, self.max_effort)


def numpy_search(index: Any) -> Any:
    """Return the `search` method of a faiss index for numpy arrays.

    `faiss.contrib.torch_utils`, which some libraries import, replaces `search` with a version that does not accept
    `params` and renames the original to `search_numpy`.
    """
    return getattr(index, "search_numpy", index.search)


def _search_options(kind: str, effort: int, present_bits: NDArray[np.uint8] | None = None) -> Any:
    selector = {} if present_bits is None else {"sel": faiss.IDSelectorBitmap(present_bits)}
    if kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=effort, **selector)
    return faiss.SearchParametersIVF(nprobe=effort, **selector)


# A search only reads its options, so threads can share them.
_shared_options = lru_cache(maxsize=64)(_search_options)


def _pad(vectors: Vectors) -> Vectors:
    """Pad with zeros to a multiple of four columns, because IVF-PQ and binary codes encode four columns at a time."""
    missing = -vectors.shape[1] % 4
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else np.ascontiguousarray(vectors)


def _sample(vectors: Vectors, size: int) -> Vectors:
    if len(vectors) <= size:
        return vectors
    return vectors[np.sort(np.random.default_rng(0).choice(len(vectors), size, replace=False))]
