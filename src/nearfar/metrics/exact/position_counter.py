"""Positions of the positives, computed by counting the negatives ahead of each positive.

Let p_1, p_2, ... be the positives of a query, best first, with ties in order of gallery index. Then

    position(p_k) = k + #{negatives that beat p_k}

A negative beats a positive if it is more similar, or equally similar and earlier in the gallery. A negative that beats
p_k also beats all later positives. Therefore, each positive has a counter, and a negative increases only the counter of
the best positive that it beats. Cumulative sums of the counters give the number of negatives that beat each positive.

The depth is the largest position that matters to the metrics. The threshold of a query is the similarity of its worst
positive whose position can be within the depth, minus the rounding error of a matrix product. Negatives below the
threshold do not change any position that matters.
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
    """Negatives above the threshold of a query. c is the similarity that `SymmetricSimilarity` defines.

    Attributes:
        query: Query of each candidate.
        index: Gallery index of each candidate.
        score: Similarity c of each candidate to its query.
        beaten: The best positive that each candidate certainly beats, as an index into the arrays of PositionCounter.
            If there is none, the index is one past the last positive of the query.
        uncertain: Indices of the candidates that may beat a better positive than `beaten`, because of rounding.
    """

    query: Ints
    index: Ints
    score: Array
    beaten: Ints
    uncertain: Ints


@dataclass(frozen=True)
class PositionCounter:
    """The positives of all queries in flat arrays, best first, with a counter for each positive.

    The methods update the arrays in place. c and s are the two similarities that `SymmetricSimilarity` defines. Entries
    of c come from matrix products, whose rounding errors depend on the position in the matrix. s is computed pair by
    pair in float64 and decides the order of samples, so it is called exact.

    Attributes:
        similarity: The similarity c.
        names: Metrics to compute.
        positives: Number of positives of each query.
        depth: Largest position of each query that matters to the metrics.
        starts: The slice starts[q] : starts[q + 1] of the next five arrays belongs to the positives of query q.
        index: Gallery index of each positive.
        value: Exact similarity s of each positive.
        low: Similarity c of each positive minus the rounding error of a matrix product.
        high: Similarity c of each positive plus the rounding error.
        counts: Counter of each positive (see the module docstring).
        threshold: For each query, the similarity c above which negatives matter.
        nearest: For each query, the gallery index of the nearest sample so far.
        nearest_score: Similarity c of `nearest`.
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
        """Return the negatives whose similarity is above the threshold of their query.

        `scores` is a strip (some rows of a tile) of the similarity matrix. Its top left entry is at (top, left). Both
        its rows and its columns are queries. If the tile is on the diagonal, its columns are the same queries as its
        rows, so only the rows of the strip are searched.
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
        """For each candidate, add 1 to the counter of the best positive that it beats.

        Where rounding errors leave this positive uncertain, exact similarities are computed. `nearest` is also updated.
        """
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
        """Make sample `index[i]` the nearest sample of query `query[i]` if it is more similar than the nearest so far.

        `score[i]` is its similarity c, which has a rounding error. If two similarities are too close to decide, exact
        similarities are compared. Of samples with equal similarity, the one with the lower index is the nearest.
        """
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
        """Return the positions of the positives from the counts so far.

        The positions are lower bounds until all tiles have been counted. Then all positions within the depth are exact.
        """
        total = np.concatenate([[0], np.cumsum(self.counts)])
        sizes = np.diff(self.starts)
        before, begin = np.repeat(total[self.starts[:-1]], sizes), np.repeat(self.starts[:-1], sizes)
        positions: Ints = total[1:] - before + np.arange(1, len(begin) + 1) - begin
        return positions

    def raise_thresholds(self) -> None:
        """Raise the threshold of each query to the similarity of its worst positive, minus the rounding error.

        Positives whose position is already beyond the depth are disregarded. If no others are left, the best positive
        is used.
        """
        sizes = np.diff(self.starts)
        some = np.flatnonzero(sizes)
        within = self.positions() <= np.repeat(self.depth, sizes)
        left = np.maximum(np.add.reduceat(within, self.starts[some], dtype=np.int64), 1)
        self.threshold[some] = self.low[self.starts[some] + left - 1]

    def columns(self) -> Columns:
        """Return the metrics of all queries in the format of `evaluate_blocks`."""
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
    """Create a counter from all pairs of a query and one of its positives.

    Args:
        names: Metrics to compute.
        similarity: The similarity c.
        query: The query of each pair.
        index: The gallery index of the positive of each pair.
    """
    size = len(similarity.gallery.rows)
    value, c = similarity.compute_pairs(query, index)
    order = np.lexsort((index, -value, query))
    query, index, value, c = query[order], index[order], value[order], c[order]
    positives = np.bincount(query, minlength=size)
    counts, which = np.unique(positives, return_inverse=True)
    depth = np.array([required_depth(names, max(int(count), 1), size) for count in counts])[which]
    # The k-th best positive is at position k or later, so positives with k > depth do not matter.
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
    """Return all pairs (query, positive), where every gallery sample is a query. A query is not its own positive."""
    queries, indices = [], []
    for start in range(0, relevance.gallery, BLOCK):
        rows = np.arange(start, min(start + BLOCK, relevance.gallery))
        table = relevance.positives(rows)
        row, column = np.nonzero((table >= 0) & (table != rows[:, None]))
        queries.append(rows[row])
        indices.append(table[row, column])
    return np.concatenate(queries), np.concatenate(indices)


def find_first(begin: Ints, end: Ints, holds: Callable[[Ints, Ints], NDArray[np.bool_]]) -> Ints:
    """Find the first index in each range [begin, end) at which `holds` is true, or `end` if there is none.

    All ranges are searched at once by bisection. Within a range, `holds` must not change from true back to false.

    Args:
        begin: Start of each range.
        end: End of each range.
        holds: Function that tests an array of indices at once. Its second argument is the number of each index's range.

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
