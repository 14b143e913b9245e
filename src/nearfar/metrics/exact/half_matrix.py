"""Evaluation of every sample against all others from half of the similarity matrix.

The positions are exactly those of a stable full sort. The similarity c of `nearfar.metrics.exact.symmetric_similarity`
is symmetric. A tile of the matrix with rows I and columns J therefore serves both the queries I, ranking the samples J,
and the queries J, ranking the samples I. Tiles below the diagonal are not computed.

The similarities of the positives are computed first, pair by pair. They give each query a threshold: negatives with a
lower similarity do not affect its metrics (see `nearfar.metrics.exact.position_counter`). The similarities of each tile
are compared with the thresholds while the tile is in the CPU cache, and only the negatives above them are examined. If
there are many of these, because rankings are poor or ties are common, this method is slow, so it stops and returns
None.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat

import numpy as np
import torch

from nearfar.metrics.exact.position_counter import create_counter, list_positive_pairs
from nearfar.metrics.exact.symmetric_similarity import make_symmetric
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns
from nearfar.metrics.similarity import Gallery
from nearfar.validation import Ints

TILE = 1024
# below these sizes, the matrix product takes too little time for this method to pay off
MIN_SAMPLES, MIN_DIM = 4 * TILE, 64
# `evaluate_blocks` is faster if queries have more than MAX_POSITIVES positives on average, or if the fraction of
# similarities above the thresholds exceeds MAX_ABOVE
MAX_POSITIVES, MAX_ABOVE = 32, 0.06
# memory in bytes for each pair of a query and one of its positives
PAIR_BYTES = 200


def try_half_matrix(names: Sequence[str], gallery: Gallery, relevance: Relevance, *, memory_mb: int) -> Columns | None:
    """Compute the metrics of every sample as a query against all others, as `evaluate_blocks` does, or return None.

    None means that the caller should use `evaluate_blocks` instead: on a GPU, for small inputs, with many positives, or
    if `evaluate_tiles` returns None.
    """
    rows, dim = gallery.rows.shape
    few = int(relevance.max_positives().sum()) <= min(MAX_POSITIVES * rows, memory_mb * 2**20 // PAIR_BYTES)
    if gallery.rows.device.type != "cpu" or rows < MIN_SAMPLES or dim < MIN_DIM or not few:
        return None
    return evaluate_tiles(names, gallery, relevance)


def evaluate_tiles(
    names: Sequence[str], gallery: Gallery, relevance: Relevance, *, tile: int = TILE, max_above: float = MAX_ABOVE
) -> Columns | None:
    """Compute the result of `evaluate_blocks` from only the tiles of the similarity matrix on and above its diagonal.

    Return None if the fraction of similarities above the threshold of their query exceeds `max_above`. Queries without
    a positive are not ranked: their "nearest" is -1.
    """
    similarity, size = make_symmetric(gallery), len(gallery.rows)
    query, index = list_positive_pairs(relevance)
    counter = create_counter(names, similarity, query, index)
    diagonal = np.arange(size)
    hidden = _group_by_tile(np.concatenate([query, diagonal]), np.concatenate([index, diagonal]), tile, size)
    store = torch.empty(tile * tile, dtype=gallery.dtype)
    strip = -(-tile // torch.get_num_threads())
    scanned = above = unused = 0
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for top in range(0, size, tile):
            queries = similarity.left_factor(slice(top, top + tile))
            for left in range(top, size, tile):
                others = similarity.right_factor(slice(left, left + tile))
                scores = store[: len(queries) * len(others)].view(len(queries), len(others))
                table = torch.mm(queries, others.T, out=scores).numpy()
                table[hidden(top, left)] = -np.inf
                strips = np.split(table, range(strip, len(table), strip))
                for candidates in pool.map(counter.find_candidates, strips, count(top, strip), repeat(left)):
                    counter.count(candidates)
                    unused += len(candidates.query)
                scanned += table.size * (1 if left == top else 2)
                # Raise the thresholds whenever there are more new candidates than positive pairs. Low thresholds let
                # many candidates through, so this happens often at first and rarely later.
                if unused > len(counter.index):
                    counter.raise_thresholds()
                    above, unused = above + unused, 0
            if above + unused > max_above * scanned:
                return None
    return counter.columns()


def _group_by_tile(row: Ints, column: Ints, tile: int, size: int) -> Callable[[int, int], tuple[Ints, Ints]]:
    """Return a function that takes the top row and the left column of a tile, and returns the pairs inside the tile.

    The pairs are returned as an array of rows and an array of columns, both counted from the corner (top, left).
    """
    across = -(-size // tile)
    code = row // tile * across + column // tile
    order = np.argsort(code, kind="stable")
    row, column, code = row[order], column[order], code[order]

    def inside(top: int, left: int) -> tuple[Ints, Ints]:
        number = top // tile * across + left // tile
        begin, end = np.searchsorted(code, [number, number + 1])
        return row[begin:end] - top, column[begin:end] - left

    return inside
