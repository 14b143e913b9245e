"""Count the negatives ahead of each positive, and so the positions of the positives.

With p_1, p_2, ... the positives of a query, best first (ties by gallery index),

    position(p_k) = k + #{negatives that beat p_k}

A negative beats a positive if it is more similar, or equally similar and earlier in the gallery. It is counted at the
best positive that it beats. The threshold of a query is a similarity below which nothing changes a position that
matters: that of its worst positive whose position can be within the depth, minus the rounding error of a product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearfar.metrics.exact.positions import BEYOND
from nearfar.metrics.exact.symmetric_similarity import SymmetricSimilarity
from nearfar.metrics.names import required_depth
from nearfar.metrics.relevance import Relevance
from nearfar.metrics.retrieval import Columns, empty_columns, fill_columns
from nearfar.validation import Array, Ints

BLOCK = 1024


@dataclass(frozen=True)
class Candidates:
    """Negatives above the threshold of a query.

    Attributes:
        query: The query of each candidate.
        index: Its gallery index.
        score: Its similarity c.
        beaten: The best positive that it beats for certain.
        uncertain: Which candidates may beat a better one, because of rounding.
    """

    query: Ints
    index: Ints
    score: Array
    beaten: Ints
    uncertain: Ints


@dataclass(frozen=True)
class PositionCounter:
    """The positives of all queries in flat arrays, best first, and the negatives counted at each. Changes in place.

    Attributes:
        similarity: The similarity c.
        names: Metrics to compute.
        positives: Number of positives of each query.
        depth: Largest position that matters to each query.
        starts: The positives of query q are starts[q] : starts[q + 1] of the next five arrays.
        index: Gallery index of each positive.
        value: Its exact similarity s.
        low: Its similarity c minus the rounding error of a product.
        high: Its similarity c plus the rounding error.
        counts: Number of negatives counted at it.
        threshold: Similarity c of each query above which negatives matter.
        nearest: Gallery index of the sample at position 1 so far.
        nearest_score: Its similarity c.
    """

    similarity: SymmetricSimilarity
    names: tuple[str, ...]
    positives: Ints
    depth: Ints
    starts: Ints
    index: Ints
    value: Array
    low: Array
    high: Array
    counts: Ints
    threshold: Array
    nearest: Ints
    nearest_score: Array

    def find_candidates(self, scores: Array, top: int, left: int) -> Candidates:
        """Return the negatives above their thresholds in a strip of c that begins at (top, left), for rows and columns.

        A strip that meets the diagonal is read for its rows only: the columns of its tile are rows of the same tile.
        """
        height, width = scores.shape
        row, column = np.divmod(np.flatnonzero(scores > self.threshold[top : top + height, None]), width)
        query, index, score = row + top, column + left, scores[row, column]
        if left > top + height - 1:
            row, column = np.divmod(np.flatnonzero(scores > self.threshold[left : left + width]), width)
            query, index = np.concatenate([query, column + left]), np.concatenate([index, row + top])
            score = np.concatenate([score, scores[row, column]])
        begin, end = self.starts[query], self.starts[query + 1]
        beaten = find_first(begin, end, lambda at, of: score[of] > self.high[at])
        uncertain = np.flatnonzero((beaten > begin) & (score >= self.low[np.maximum(beaten, 1) - 1]))
        return Candidates(query, index, score, beaten, uncertain)

    def count(self, candidates: Candidates) -> None:
        """Count each candidate at the best positive it beats. Exact similarities decide the uncertain ones."""
        at = candidates.beaten.copy()
        query, index = candidates.query[candidates.uncertain], candidates.index[candidates.uncertain]
        value = self.similarity.compute_pairs(query, index)[0]

        def beats(at: Ints, of: Ints) -> NDArray[np.bool_]:
            ties = (value[of] == self.value[at]) & (index[of] < self.index[at])
            result: NDArray[np.bool_] = ties | (value[of] > self.value[at])
            return result

        at[candidates.uncertain] = find_first(self.starts[query], at[candidates.uncertain], beats)
        np.add.at(self.counts, at[at < self.starts[candidates.query + 1]], 1)
        ahead = np.flatnonzero(at == self.starts[candidates.query])
        self._update_nearest(candidates.query[ahead], candidates.index[ahead], candidates.score[ahead])

    def _update_nearest(self, query: Ints, index: Ints, score: Array) -> None:
        """Keep the nearest of these samples and the current one. Exact similarities decide between close ones."""
        old = self.nearest_score[query]
        np.maximum.at(self.nearest_score, query, score)
        bar = self.nearest_score[query] - 3 * self.similarity.error_bound
        is_close = score >= bar
        rivals = np.unique(query[is_close & (old >= bar)])
        query, index = np.append(query[is_close], rivals), np.append(index[is_close], self.nearest[rivals])
        value = np.zeros(len(query), dtype=self.value.dtype)
        _, which, times = np.unique(query, return_inverse=True, return_counts=True)
        several = times[which] > 1
        value[several] = self.similarity.compute_pairs(query[several], index[several])[0]
        order = np.lexsort((index, -value, query))
        order = order[np.diff(query[order], prepend=-1) > 0]
        self.nearest[query[order]] = index[order]

    def positions(self) -> Ints:
        """Return the positions of the positives from the counts so far: never too large, and exact at the end."""
        total = np.concatenate([[0], np.cumsum(self.counts)])
        sizes = np.diff(self.starts)
        before, begin = np.repeat(total[self.starts[:-1]], sizes), np.repeat(self.starts[:-1], sizes)
        positions: Ints = total[1:] - before + np.arange(1, len(begin) + 1) - begin
        return positions

    def raise_thresholds(self) -> None:
        """Ignore the positives whose position is already beyond the depth, except the best one."""
        sizes = np.diff(self.starts)
        some = np.flatnonzero(sizes)
        within = self.positions() <= np.repeat(self.depth, sizes)
        left = np.maximum(np.add.reduceat(within, self.starts[some], dtype=np.int64), 1)
        self.threshold[some] = self.low[self.starts[some] + left - 1]

    def columns(self) -> Columns:
        """Return the metrics of every query."""
        columns = empty_columns(self.names, len(self.positives))
        positions, sizes = self.positions(), np.diff(self.starts)
        for start in range(0, len(sizes), BLOCK):
            block = np.arange(start, min(start + BLOCK, len(sizes)))
            inside = np.arange(max(int(sizes[block].max()), 1)) < sizes[block, None]
            table = np.full(inside.shape, BEYOND)
            table[inside] = positions[self.starts[start] : self.starts[block[-1] + 1]]
            fill_columns(columns, self.names, block, table, self.positives[block], self.nearest[block])
        return columns


def create_counter(names: Sequence[str], similarity: SymmetricSimilarity, query: Ints, index: Ints) -> PositionCounter:
    """Create a counter from all pairs of a query and the gallery index of a positive."""
    size = len(similarity.gallery.rows)
    value, c = similarity.compute_pairs(query, index)
    order = np.lexsort((index, -value, query))
    query, index, value, c = query[order], index[order], value[order], c[order]
    positives = np.bincount(query, minlength=size)
    counts, which = np.unique(positives, return_inverse=True)
    depth = np.array([required_depth(names, max(int(count), 1), size) for count in counts])[which]
    # the position of p_k is at least k, so those with k beyond the depth do not matter
    first = np.concatenate([[0], np.cumsum(positives)])
    matters = np.arange(len(query)) - first[query] < depth[query]
    query, index, value, c = query[matters], index[matters], value[matters], c[matters]
    starts = np.concatenate([[0], np.cumsum(np.minimum(positives, depth))])
    some = np.flatnonzero(positives)
    threshold, nearest_score = (np.full(size, start, dtype=value.dtype) for start in (np.inf, -np.inf))
    nearest = np.full(size, -1)
    low, high = ((c + sign * similarity.error_bound).astype(value.dtype) for sign in (-1, 1))
    threshold[some] = low[starts[some + 1] - 1]
    nearest_score[some], nearest[some] = c[starts[some]], index[starts[some]]
    return PositionCounter(
        similarity,
        tuple(names),
        positives,
        depth,
        starts,
        index,
        value,
        low,
        high,
        np.zeros(len(query), dtype=np.int64),
        threshold,
        nearest,
        nearest_score,
    )


def list_positive_pairs(relevance: Relevance) -> tuple[Ints, Ints]:
    """Return all pairs (query, positive) of a same-set evaluation, without the query itself."""
    queries, indices = [], []
    for start in range(0, relevance.gallery, BLOCK):
        rows = np.arange(start, min(start + BLOCK, relevance.gallery))
        table = relevance.positives(rows)
        row, column = np.nonzero((table >= 0) & (table != rows[:, None]))
        queries.append(rows[row])
        indices.append(table[row, column])
    return np.concatenate(queries), np.concatenate(indices)


def find_first(begin: Ints, end: Ints, holds: Callable[[Ints, Ints], NDArray[np.bool_]]) -> Ints:
    """Return for each range [begin, end) the first index at which `holds` is true, or end.

    A binary search in all ranges at once: within a range, `holds` must stay true once it is.

    Args:
        begin: Start of each range.
        end: End of each range.
        holds: Function of indices and of the numbers of their ranges.

    >>> falling = np.array([9, 5, 1, 8, 2])
    >>> find_first(np.array([0, 3]), np.array([3, 5]), lambda at, of: falling[at] < 4).tolist()
    [2, 4]
    """
    low: Ints = begin.copy()
    high = end.copy()
    of = np.flatnonzero(low < high)
    while len(of):
        middle = (low[of] + high[of]) // 2
        is_true = holds(middle, of)
        high[of[is_true]] = middle[is_true]
        low[of[~is_true]] = middle[~is_true] + 1
        of = of[low[of] < high[of]]
    return low
