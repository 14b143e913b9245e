"""Where the positives of every query stand: thresholds, the negatives found above them, and so their ranks.

With p_1, p_2, ... the positives of a query, best first (equals by position),

    rank(p_k) = k + #{negatives that beat p_k}

A negative beats a positive if it is more similar, or as similar and before it in the gallery. It is noted at the best
positive that it beats. The `floor` of a query is below everything that can still change a rank that matters: the
similarity of its worst positive that can have a rank within its depth, less the error of a product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfar.metrics.exact.positions import BEYOND
from nearfar.metrics.exact.symmetric_similarity import Mutual
from nearfar.metrics.names import depth_of
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns, empty_columns, fill
from nearfar.validation import Array, Ints

BLOCK = 1024


@dataclass(frozen=True)
class Above:
    """Negatives above the floor of a query, their c, and the first positive that each is `sure` to beat.

    Those at the positions `doubt` may beat a better one.
    """

    query: Ints
    place: Ints
    score: Array
    sure: Ints
    doubt: Ints


@dataclass(frozen=True)
class Standings:
    """Positives as one flat array, query after query: those of query q are `starts[q]:starts[q + 1]`, best first.

    `value` is the exact s of a positive, (`low`, `high`) are c with the error of a product on either side, `beaten` how
    many negatives were noted at it. `nearest` is the row ranked first so far and `peak` its c. Arrays change in place.
    """

    both: Mutual
    names: tuple[str, ...]
    positives: Ints
    depth: Ints
    starts: Ints
    place: Ints
    value: Array
    low: Array
    high: Array
    beaten: Ints
    floor: Array
    nearest: Ints
    peak: Array

    def above_floors(self, scores: Array, top: int, left: int) -> Above:
        """What is above its floor in a strip of c that begins at (top, left), for its rows and for its columns.

        A strip that meets the diagonal is read for its rows only: the columns of its tile are rows there.
        """
        height, width = scores.shape
        line, column = np.divmod(np.flatnonzero(scores > self.floor[top : top + height, None]), width)
        query, place, score = line + top, column + left, scores[line, column]
        if left > top + height - 1:
            line, column = np.divmod(np.flatnonzero(scores > self.floor[left : left + width]), width)
            query, place = np.concatenate([query, column + left]), np.concatenate([place, line + top])
            score = np.concatenate([score, scores[line, column]])
        begin, end = self.starts[query], self.starts[query + 1]
        sure = first_true(begin, end, lambda at, of: score[of] > self.high[at])
        doubt = np.flatnonzero((sure > begin) & (score >= self.low[np.maximum(sure, 1) - 1]))
        return Above(query, place, score, sure, doubt)

    def settle(self, found: Above) -> None:
        """Note each negative at the best positive it beats; where the error of the product leaves it open, exactly."""
        at = found.sure.copy()
        query, place = found.query[found.doubt], found.place[found.doubt]
        value = self.both.exact_pairs(query, place)[0]

        def beats(at: Ints, of: Ints) -> NDArray[np.bool_]:
            tied = (value[of] == self.value[at]) & (place[of] < self.place[at])
            true: NDArray[np.bool_] = tied | (value[of] > self.value[at])
            return true

        at[found.doubt] = first_true(self.starts[query], at[found.doubt], beats)
        np.add.at(self.beaten, at[at < self.starts[found.query + 1]], 1)
        ahead = np.flatnonzero(at == self.starts[found.query])
        self._note_nearest(found.query[ahead], found.place[ahead], found.score[ahead])

    def _note_nearest(self, query: Ints, place: Ints, score: Array) -> None:
        """Keep the nearest of these and the one so far; exact similarities decide between those that are close."""
        old = self.peak[query]
        np.maximum.at(self.peak, query, score)
        bar = self.peak[query] - 3 * self.both.slack
        close = score >= bar
        rivals = np.unique(query[close & (old >= bar)])
        query, place = np.append(query[close], rivals), np.append(place[close], self.nearest[rivals])
        value = np.zeros(len(query), dtype=self.value.dtype)
        _, which, times = np.unique(query, return_inverse=True, return_counts=True)
        several = times[which] > 1
        value[several] = self.both.exact_pairs(query[several], place[several])[0]
        order = np.lexsort((place, -value, query))
        order = order[np.diff(query[order], prepend=-1) > 0]
        self.nearest[query[order]] = place[order]

    def ranks(self) -> Ints:
        """Ranks of the positives by what was noted so far: never too large, and complete at the end."""
        noted = np.concatenate([[0], np.cumsum(self.beaten)])
        slots = np.diff(self.starts)
        before, begin = np.repeat(noted[self.starts[:-1]], slots), np.repeat(self.starts[:-1], slots)
        ranks: Ints = noted[1:] - before + np.arange(1, len(begin) + 1) - begin
        return ranks

    def raise_floors(self) -> None:
        """Drop the positives whose rank is already beyond the depth, except the best."""
        slots = np.diff(self.starts)
        some = np.flatnonzero(slots)
        within = self.ranks() <= np.repeat(self.depth, slots)
        left = np.maximum(np.add.reduceat(within, self.starts[some], dtype=np.int64), 1)
        self.floor[some] = self.low[self.starts[some] + left - 1]

    def columns(self) -> Columns:
        """The metrics of every query, from the ranks."""
        columns = empty_columns(self.names, len(self.positives))
        ranks, slots = self.ranks(), np.diff(self.starts)
        for start in range(0, len(slots), BLOCK):
            here = np.arange(start, min(start + BLOCK, len(slots)))
            taken = np.arange(max(int(slots[here].max()), 1)) < slots[here, None]
            table = np.full(taken.shape, BEYOND)
            table[taken] = ranks[self.starts[start] : self.starts[here[-1] + 1]]
            fill(columns, self.names, here, table, self.positives[here], self.nearest[here])
        return columns


def standings(names: Sequence[str], both: Mutual, query: Ints, place: Ints) -> Standings:
    """The standings before a single negative was seen, from all pairs of a query and its positive."""
    size = len(both.gallery.rows)
    value, c = both.exact_pairs(query, place)
    order = np.lexsort((place, -value, query))
    query, place, value, c = query[order], place[order], value[order], c[order]
    positives = np.bincount(query, minlength=size)
    counts, which = np.unique(positives, return_inverse=True)
    depth = np.array([depth_of(names, max(int(count), 1), size) for count in counts])[which]
    # p_k has rank k at least.
    first = np.concatenate([[0], np.cumsum(positives)])
    kept = np.arange(len(query)) - first[query] < depth[query]
    query, place, value, c = query[kept], place[kept], value[kept], c[kept]
    starts = np.concatenate([[0], np.cumsum(np.minimum(positives, depth))])
    some = np.flatnonzero(positives)
    floor, peak = (np.full(size, start, dtype=value.dtype) for start in (np.inf, -np.inf))
    nearest = np.full(size, -1)
    low, high = (c - both.slack).astype(value.dtype), (c + both.slack).astype(value.dtype)
    floor[some] = low[starts[some + 1] - 1]
    peak[some], nearest[some] = c[starts[some]], place[starts[some]]
    beaten = np.zeros(len(query), dtype=np.int64)
    return Standings(
        both, tuple(names), positives, depth, starts, place, value, low, high, beaten, floor, nearest, peak
    )


def pairs_of(who: Relevance) -> tuple[Ints, Ints]:
    """All (query, positive) of a same-set evaluation, the query itself left out."""
    queries, places = [], []
    for start in range(0, who.gallery, BLOCK):
        rows = np.arange(start, min(start + BLOCK, who.gallery))
        table = who.positions(rows)
        line, column = np.nonzero((table >= 0) & (table != rows[:, None]))
        queries.append(rows[line])
        places.append(table[line, column])
    return np.concatenate(queries), np.concatenate(places)


def first_true(begin: Ints, end: Ints, holds: Callable[[Ints, Ints], NDArray[np.bool_]]) -> Ints:
    """For each range [begin, end) the first position at which `holds`, or end. Once true it must stay true.

    `holds(at, of)` says it for the positions `at` of the ranges number `of`. A binary search in all ranges at once.

    >>> falling = np.array([9, 5, 1, 8, 2])
    >>> first_true(np.array([0, 3]), np.array([3, 5]), lambda at, of: falling[at] < 4).tolist()
    [2, 4]
    """
    low: Ints = begin.copy()
    high = end.copy()
    of = np.flatnonzero(low < high)
    while len(of):
        middle = (low[of] + high[of]) // 2
        true = holds(middle, of)
        high[of[true]] = middle[true]
        low[of[~true]] = middle[~true] + 1
        of = of[low[of] < high[of]]
    return low
