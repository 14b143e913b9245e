"""Same-set evaluation from half of the matrix product, with exactly the ranks of a stable full sort.

The similarity c of `nearfar.metrics.exact.symmetric_similarity` is symmetric: tile (I, J) ranks the samples J for the
queries I and the samples I for the queries J, so tiles below the diagonal are not computed. The similarities of the
positives are computed first, pair by pair. Each tile is then compared with the lowest positive similarity of every
query (`nearfar.metrics.exact.counting`) while it is in cache, and only the few negatives above it are examined. If
there are many (poor rankings, or many ties), this method gives up.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat

import numpy as np
import torch

from nearfar.metrics.exact.counting import pairs_of, standings
from nearfar.metrics.exact.symmetric_similarity import mutual
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns
from nearfar.metrics.similarity import Gallery
from nearfar.validation import Ints

TILE = 1024
# With fewer rows or dimensions there is little product to save.
LEAST_ROWS, LEAST_DIM = 4 * TILE, 64
# With more positives a query, or a larger share of similarities above their floors, whole rows are cheaper.
MOST_POSITIVES, MOST_ABOVE = 32, 0.06
# What a positive takes in memory.
PAIR_BYTES = 200


def triangle(names: Sequence[str], gallery: Gallery, who: Relevance, *, memory_mb: int) -> Columns | None:
    """The columns of `stream` for every row against all the others, or None where a stream is the better way.

    That is on a GPU, with little product to save, with many positives, or when given up.
    """
    rows, dim = gallery.rows.shape
    few = int(who.at_most().sum()) <= min(MOST_POSITIVES * rows, memory_mb * 2**20 // PAIR_BYTES)
    if gallery.rows.device.type != "cpu" or rows < LEAST_ROWS or dim < LEAST_DIM or not few:
        return None
    return by_tiles(names, gallery, who)


def by_tiles(
    names: Sequence[str], gallery: Gallery, who: Relevance, *, tile: int = TILE, most_above: float = MOST_ABOVE
) -> Columns | None:
    """The columns of `stream` from the tiles on and above the diagonal, or None if given up.

    The "nearest" of a query without a positive is not looked for and -1.
    """
    both, size = mutual(gallery), len(gallery.rows)
    query, place = pairs_of(who)
    race = standings(names, both, query, place)
    hidden = _by_tile(np.concatenate([query, np.arange(size)]), np.concatenate([place, np.arange(size)]), tile, size)
    store = torch.empty(tile * tile, dtype=gallery.dtype)
    strip = -(-tile // torch.get_num_threads())
    scanned = above = unused = 0
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for top in range(0, size, tile):
            queries = both.left(slice(top, top + tile))
            for left in range(top, size, tile):
                others = both.right(slice(left, left + tile))
                scores = store[: len(queries) * len(others)].view(len(queries), len(others))
                table = torch.mm(queries, others.T, out=scores).numpy()
                table[hidden(top, left)] = -np.inf
                strips = np.split(table, range(strip, len(table), strip))
                found = pool.map(race.above_floors, strips, count(top, strip), repeat(left))
                for each in found:
                    race.settle(each)
                    unused += len(each.query)
                scanned += table.size * (1 if left == top else 2)
                # Often at first, when floors are low, then seldom.
                if unused > len(race.place):
                    race.raise_floors()
                    above, unused = above + unused, 0
            if above + unused > most_above * scanned:
                return None
    return race.columns()


def _by_tile(row: Ints, column: Ints, tile: int, size: int) -> Callable[[int, int], tuple[Ints, Ints]]:
    """Pairs (row, column) sorted into tiles: gives those of the tile that begins at (top, left), counted from there."""
    across = -(-size // tile)
    code = row // tile * across + column // tile
    order = np.argsort(code, kind="stable")
    row, column, code = row[order], column[order], code[order]

    def inside(top: int, left: int) -> tuple[Ints, Ints]:
        here = top // tile * across + left // tile
        begin, end = np.searchsorted(code, [here, here + 1])
        return row[begin:end] - top, column[begin:end] - left

    return inside
