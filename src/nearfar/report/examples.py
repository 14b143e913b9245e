"""What a search finds: examples, the queries that go wrong the most, and the classes that are taken for each other.

By cosine. A query is not its own neighbor. Ties rank by row, as in `evaluate`. Where the data has the roles query and
gallery, queries of the one search the other; otherwise every sample searches all the others.
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
# beyond this many queries a sample of them tells the same (ours); against the whole gallery in any case
MOST_QUERIES = 4000


@dataclass(frozen=True)
class Found:
    """A query and its neighbors, the nearest first: rows of the data, their classes, and whether they are right.

    `first` is the rank of the nearest right one in the whole gallery, None where there is none.
    """

    row: int
    name: str
    rows: list[int]
    names: list[str]
    right: list[bool]
    similarities: list[float]
    first: int | None


@dataclass(frozen=True)
class Judged:
    """Queries with a right answer in the gallery: their rows, the nearest rows, and the rank of the first right one."""

    rows: Ints
    nearest: Ints
    first: Ints


@dataclass(frozen=True)
class Confusion:
    """Two classes taken for each other: of `queries` of both, `count` have a nearest neighbor of the other class.

    `rows` is an example, a query of either class and its nearest neighbor, which is of the other.
    """

    names: tuple[str, str]
    count: int
    queries: int
    rows: tuple[int, int]


def search_examples(
    data: Manifest, embeddings: Tensor, *, queries: int = 12, neighbors: int = 8, seed: int = 0
) -> list[Found]:
    """The neighbors of some queries: classes spread evenly over their order, in each class a sample by chance.

    Classes with a right answer in the gallery go first. With fewer classes than queries a class is asked several times.

    >>> m = Manifest(labels=[0, 0, 1, 1], classes=("ant", "owl"), split=["test"] * 4, paths=("a", "b", "c", "d"))
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> [(found.name, found.names, found.right) for found in search_examples(m, x, queries=2, neighbors=2)]
    [('ant', ['ant', 'owl'], [True, False]), ('owl', ['owl', 'ant'], [True, False])]
    """
    asking, gallery = _roles(data, embeddings)
    rng = np.random.default_rng(seed)
    usable = asking[_positives(data, asking, gallery) > 0]
    usable = usable if len(usable) else asking
    labels = np.unique(data.labels[usable])
    rounds: list[int] = []
    left = {int(label): rng.permutation(usable[data.labels[usable] == label]).tolist() for label in labels}
    while left and len(rounds) < queries:
        order = list(left)
        places = np.linspace(0, len(order) - 1, min(queries - len(rounds), len(order))).round().astype(int)
        rounds += [left[order[place]].pop() for place in places]
        left = {label: rows for label, rows in left.items() if rows}
    return neighbors_of(data, embeddings, rounds, neighbors=neighbors)


def neighbors_of(data: Manifest, embeddings: Tensor, rows: Sequence[int], *, neighbors: int = 8) -> list[Found]:
    """The neighbors of these rows, in their order."""
    _, gallery = _roles(data, embeddings)
    found = []
    for block, similarity in _blocks(embeddings, np.asarray(rows, dtype=np.int64), gallery):
        right = data.labels[block][:, None] == data.labels[gallery][None, :]
        values, places = torch.sort(similarity, dim=1, descending=True, stable=True)
        for i, row in enumerate(block.tolist()):
            order, cosine = places[i].numpy(), values[i].numpy()
            real = np.isfinite(cosine)  # all but the query itself
            order, cosine = order[real], cosine[real]
            hits = np.flatnonzero(right[i][order])
            near = order[:neighbors]
            found.append(
                Found(
                    row=row,
                    name=data.classes[data.labels[row]],
                    rows=gallery[near].tolist(),
                    names=[data.classes[label] for label in data.labels[gallery[near]].tolist()],
                    right=right[i][near].tolist(),
                    similarities=cosine[: len(near)].tolist(),
                    first=int(hits[0]) + 1 if len(hits) else None,
                )
            )
    return found


def judge(data: Manifest, embeddings: Tensor, *, queries: int = MOST_QUERIES, seed: int = 0) -> Judged:
    """The nearest neighbor and the rank of the first right one, of all queries or of a sample of them."""
    asking, gallery = _roles(data, embeddings)
    asking = asking[_positives(data, asking, gallery) > 0]
    if len(asking) > queries:
        asking = np.sort(np.random.default_rng(seed).choice(asking, queries, replace=False))
    nearest, first = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    labels, column = torch.from_numpy(data.labels[gallery]), torch.arange(len(gallery))
    for block, similarity in _blocks(embeddings, asking, gallery):
        wrong = torch.from_numpy(data.labels[block])[:, None] != labels
        best, place = similarity.masked_fill(wrong, -torch.inf).max(1, keepdim=True)
        before = (similarity > best) | ((similarity == best) & (column < place))
        nearest.append(gallery[similarity.argmax(1).numpy()])
        first.append(before.sum(1).numpy() + 1)
    return Judged(asking, np.concatenate(nearest), np.concatenate(first))


def worst_queries(data: Manifest, judged: Judged, *, queries: int = 6) -> list[int]:
    """Rows of the queries whose first right neighbor comes last, at most one a class; none whose nearest is right."""
    order = np.argsort(-judged.first, kind="stable")
    order = order[judged.first[order] > 1]
    _, one_each = np.unique(data.labels[judged.rows[order]], return_index=True)
    chosen: list[int] = judged.rows[order[np.sort(one_each)[:queries]]].tolist()
    return chosen


def confusions(data: Manifest, judged: Judged, *, pairs: int = 8) -> list[Confusion]:
    """The pairs of classes with the most queries whose nearest neighbor is of the other class, as a share of both's.

    Ties go to the pair that comes first in class order.
    """
    asked, got = data.labels[judged.rows], data.labels[judged.nearest]
    sizes = np.bincount(asked, minlength=len(data.classes))
    wrong = np.flatnonzero(asked != got)
    low, high = np.minimum(asked, got)[wrong], np.maximum(asked, got)[wrong]
    code, example, counts = np.unique(low * len(data.classes) + high, return_index=True, return_counts=True)
    a, b = code // len(data.classes), code % len(data.classes)
    order = np.argsort(-counts / (sizes[a] + sizes[b]), kind="stable")[:pairs]
    result = []
    for i in order.tolist():
        at = wrong[example[i]]
        result.append(
            Confusion(
                names=(data.classes[a[i]], data.classes[b[i]]),
                count=int(counts[i]),
                queries=int(sizes[a[i]] + sizes[b[i]]),
                rows=(int(judged.rows[at]), int(judged.nearest[at])),
            )
        )
    return result


def _roles(data: Manifest, embeddings: Tensor) -> tuple[Ints, Ints]:
    """Rows that ask and rows that are searched."""
    check_embeddings("embeddings", embeddings)
    if len(embeddings) != len(data):
        raise ValueError(f"embeddings has {len(embeddings)} rows but data has {len(data)}: pass one row a sample")
    everything = np.arange(len(data))
    if data.role is None:
        return everything, everything
    asking, gallery = np.flatnonzero(data.role == "query"), np.flatnonzero(data.role == "gallery")
    return (asking, gallery) if len(asking) and len(gallery) else (everything, everything)


def _positives(data: Manifest, asking: Ints, gallery: Ints) -> Ints:
    """How many right answers the gallery has for each asking row, itself left out."""
    sizes = np.bincount(data.labels[gallery], minlength=len(data.classes))
    positives: Ints = sizes[data.labels[asking]] - np.isin(asking, gallery)
    return positives


def _blocks(embeddings: Tensor, rows: Ints, gallery: Ints) -> Iterator[tuple[Ints, Tensor]]:
    """Blocks of rows with their cosines to the gallery [b, G], -inf for a row's similarity to itself."""
    x = embeddings.detach().cpu()
    x = unit(x if x.dtype == torch.float64 else x.float())
    right = x if len(gallery) == len(x) else x[torch.from_numpy(gallery)]
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        similarity = x[torch.from_numpy(block)] @ right.T
        place = np.searchsorted(gallery, block).clip(max=len(gallery) - 1)
        own = np.flatnonzero(gallery[place] == block)
        similarity[torch.from_numpy(own), torch.from_numpy(place[own])] = -torch.inf
        yield block, similarity
