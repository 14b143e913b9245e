"""Search results on a dataset by cosine similarity: random queries, the worst queries, and classes often confused.

A query is never its own neighbor. Neighbors with equal similarity are ordered by row, as in `evaluate`. If the data has
the roles query and gallery, the queries are searched in the gallery. Otherwise each sample is a query that is searched
in all other samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.data.manifest import Ints, Manifest
from nearfar.ops.geometry import unit
from nearfar.validation import check_embeddings

BLOCK = 512
# If there are more queries, a random sample of this size is used. The gallery is always searched in full.
MAX_QUERIES = 4000


@dataclass(frozen=True)
class QueryResult:
    """A query and its nearest neighbors, nearest first.

    Attributes:
        row: The query's row in the data.
        name: The query's class.
        rows: Rows of the neighbors.
        names: Classes of the neighbors.
        is_match: Whether each neighbor has the query's class.
        similarities: Cosine similarity of each neighbor to the query.
        first_match: Position of the first sample of the query's class when the whole gallery is ordered by similarity,
            counted from 1; None if the gallery has no such sample.
    """

    row: int
    name: str
    rows: list[int]
    names: list[str]
    is_match: list[bool]
    similarities: list[float]
    first_match: int | None


@dataclass(frozen=True)
class RankedQueries:
    """Results of Q queries that have at least one other sample of their class in the gallery; each field is [Q].

    Attributes:
        rows: Rows of the queries.
        nearest: Row of the nearest neighbor of each query.
        first_match: Position of the first sample of the query's class, counted from 1.
    """

    rows: Ints
    nearest: Ints
    first_match: Ints


@dataclass(frozen=True)
class Confusion:
    """Two classes that the search confuses.

    Attributes:
        names: The two classes.
        count: Number of queries of either class whose nearest neighbor belongs to the other class.
        queries: Number of queries from both classes together.
        rows: An example: the rows of such a query and of its nearest neighbor.
    """

    names: tuple[str, str]
    count: int
    queries: int
    rows: tuple[int, int]


def search_examples(
    data: Manifest, embeddings: Tensor, *, queries: int = 12, neighbors: int = 8, seed: int = 0
) -> list[QueryResult]:
    """Return the search results of random queries, whose classes are spread evenly over the list of classes.

    Queries without another sample of their class in the gallery are used only if there are no other queries. If
    there are fewer classes than queries, classes are used more than once.

    >>> m = Manifest(labels=[0, 0, 1, 1], classes=("ant", "owl"), split=["test"] * 4, paths=("a", "b", "c", "d"))
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> [(result.name, result.names, result.is_match) for result in search_examples(m, x, queries=2, neighbors=2)]
    [('ant', ['ant', 'owl'], [True, False]), ('owl', ['owl', 'ant'], [True, False])]
    """
    candidates, gallery = _split_roles(data, embeddings)
    rng = np.random.default_rng(seed)
    usable = candidates[_count_positives(data, candidates, gallery) > 0]
    usable = usable if len(usable) else candidates
    labels = np.unique(data.labels[usable])
    chosen: list[int] = []
    remaining = {int(label): rng.permutation(usable[data.labels[usable] == label]).tolist() for label in labels}
    while remaining and len(chosen) < queries:
        order = list(remaining)
        spread = np.linspace(0, len(order) - 1, min(queries - len(chosen), len(order))).round().astype(int)
        chosen += [remaining[order[i]].pop() for i in spread]
        remaining = {label: rows for label, rows in remaining.items() if rows}
    return find_neighbors(data, embeddings, chosen, neighbors=neighbors)


def find_neighbors(data: Manifest, embeddings: Tensor, rows: Sequence[int], *, neighbors: int = 8) -> list[QueryResult]:
    """Return the nearest neighbors of the given rows, in the order of the rows."""
    _, gallery = _split_roles(data, embeddings)
    results = []
    for block, similarity in _iterate_blocks(embeddings, np.asarray(rows, dtype=np.int64), gallery):
        is_match = data.labels[block][:, None] == data.labels[gallery][None, :]
        values, columns = torch.sort(similarity, dim=1, descending=True, stable=True)
        for i, row in enumerate(block.tolist()):
            order, cosines = columns[i].numpy(), values[i].numpy()
            is_other = np.isfinite(cosines)  # excludes the query itself, whose similarity is -inf
            order, cosines = order[is_other], cosines[is_other]
            matches = np.flatnonzero(is_match[i][order])
            near = order[:neighbors]
            results.append(
                QueryResult(
                    row=row,
                    name=data.classes[data.labels[row]],
                    rows=gallery[near].tolist(),
                    names=[data.classes[label] for label in data.labels[gallery[near]].tolist()],
                    is_match=is_match[i][near].tolist(),
                    similarities=cosines[: len(near)].tolist(),
                    first_match=int(matches[0]) + 1 if len(matches) else None,
                )
            )
    return results


def rank_queries(data: Manifest, embeddings: Tensor, *, queries: int = MAX_QUERIES, seed: int = 0) -> RankedQueries:
    """Return the nearest neighbor of each query, and the position of the first sample of the query's class.

    Queries without another sample of their class in the gallery are left out. If more than `queries` remain, a
    random sample of `queries` is used.
    """
    candidates, gallery = _split_roles(data, embeddings)
    candidates = candidates[_count_positives(data, candidates, gallery) > 0]
    if len(candidates) > queries:
        candidates = np.sort(np.random.default_rng(seed).choice(candidates, queries, replace=False))
    nearest, first_match = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    labels, column = torch.from_numpy(data.labels[gallery]), torch.arange(len(gallery))
    for block, similarity in _iterate_blocks(embeddings, candidates, gallery):
        differs = torch.from_numpy(data.labels[block])[:, None] != labels
        best, best_column = similarity.masked_fill(differs, -torch.inf).max(1, keepdim=True)
        is_before = (similarity > best) | ((similarity == best) & (column < best_column))
        nearest.append(gallery[similarity.argmax(1).numpy()])
        first_match.append(is_before.sum(1).numpy() + 1)
    return RankedQueries(candidates, np.concatenate(nearest), np.concatenate(first_match))


def find_worst_queries(data: Manifest, ranked: RankedQueries, *, queries: int = 6) -> list[int]:
    """Return the rows of the queries with the largest `first_match`, at most one per class, worst first.

    Queries whose nearest neighbor belongs to their class are left out.
    """
    order = np.argsort(-ranked.first_match, kind="stable")
    order = order[ranked.first_match[order] > 1]
    _, one_per_class = np.unique(data.labels[ranked.rows[order]], return_index=True)
    worst: list[int] = ranked.rows[order[np.sort(one_per_class)[:queries]]].tolist()
    return worst


def find_confusions(data: Manifest, ranked: RankedQueries, *, pairs: int = 8) -> list[Confusion]:
    """Return the pairs of classes that are confused most.

    Pairs are ordered by the fraction of their queries whose nearest neighbor belongs to the other class. Pairs with the
    same fraction are ordered by class number.
    """
    actual, predicted = data.labels[ranked.rows], data.labels[ranked.nearest]
    sizes = np.bincount(actual, minlength=len(data.classes))
    wrong = np.flatnonzero(actual != predicted)
    low, high = np.minimum(actual, predicted)[wrong], np.maximum(actual, predicted)[wrong]
    code, example, counts = np.unique(low * len(data.classes) + high, return_index=True, return_counts=True)
    a, b = code // len(data.classes), code % len(data.classes)
    order = np.argsort(-counts / (sizes[a] + sizes[b]), kind="stable")[:pairs]
    confusions = []
    for i in order.tolist():
        query = wrong[example[i]]
        confusions.append(
            Confusion(
                names=(data.classes[a[i]], data.classes[b[i]]),
                count=int(counts[i]),
                queries=int(sizes[a[i]] + sizes[b[i]]),
                rows=(int(ranked.rows[query]), int(ranked.nearest[query])),
            )
        )
    return confusions


def _split_roles(data: Manifest, embeddings: Tensor) -> tuple[Ints, Ints]:
    """Return the row indices of the queries and of the gallery, according to the roles in the data.

    If there is no sample with the role query, or none with the role gallery, both contain all rows.
    """
    check_embeddings("embeddings", embeddings)
    if len(embeddings) != len(data):
        raise ValueError(
            f"embeddings has {len(embeddings)} rows but data has {len(data)} samples: pass one row per sample"
        )
    everything = np.arange(len(data))
    if data.role is None:
        return everything, everything
    queries, gallery = np.flatnonzero(data.role == "query"), np.flatnonzero(data.role == "gallery")
    return (queries, gallery) if len(queries) and len(gallery) else (everything, everything)


def _count_positives(data: Manifest, queries: Ints, gallery: Ints) -> Ints:
    """Count the gallery samples of each query's class, excluding the query itself."""
    sizes = np.bincount(data.labels[gallery], minlength=len(data.classes))
    positives: Ints = sizes[data.labels[queries]] - np.isin(queries, gallery)
    return positives


def _iterate_blocks(embeddings: Tensor, rows: Ints, gallery: Ints) -> Iterator[tuple[Ints, Tensor]]:
    """Yield blocks of b rows with their cosine similarities to the G gallery samples, [b, G].

    The similarity of a row to itself is set to -inf.
    """
    x = embeddings.detach().cpu()
    x = unit(x if x.dtype == torch.float64 else x.float())
    others = x if len(gallery) == len(x) else x[torch.from_numpy(gallery)]
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        similarity = x[torch.from_numpy(block)] @ others.T
        column = np.searchsorted(gallery, block).clip(max=len(gallery) - 1)
        is_self = np.flatnonzero(gallery[column] == block)
        similarity[torch.from_numpy(is_self), torch.from_numpy(column[is_self])] = -torch.inf
        yield block, similarity
