"""Classify queries by the calibrated votes of their nearest neighbors in an index, or answer "unknown"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearfar.calibration import Calibration
from nearfar.calibration.votes import VOTERS, vote
from nearfar.errors import NearfarError
from nearfar.search.exact import Vectors
from nearfar.search.index import Index
from nearfar.validation import Embeddings, Ints

SHOWN = 3


@dataclass(frozen=True)
class Candidate:
    """A class that a query may have, with the score of `nearfar.calibration.votes.vote`."""

    label: str
    score: float


@dataclass(frozen=True)
class Classification:
    """The class of a query.

    Attributes:
        label: The class name, or None if the query is "unknown", that is, probably of no class in the index.
        probability: The probability that the best class is right, assuming that the query has a class of the index.
        candidates: The classes with the highest scores, best first.
    """

    label: str | None
    probability: float
    candidates: tuple[Candidate, ...]


def classify(
    index: Index,
    queries: Embeddings,
    calibration: Calibration,
    *,
    ids: Ints | None = None,
    shown: int = SHOWN,
) -> list[Classification]:
    """Return the class of each query, or "unknown".

    The ten nearest neighbors vote. A query is unknown if the score of its best class is below the threshold of the
    calibration. This threshold is chosen so that 95% of the queries of known classes reach it. Adding samples of a new
    class to the index makes this class known, without training.

    Args:
        index: The index, with labels.
        queries: Vectors [Q, dim]; they need not be normalized.
        calibration: The calibration of the model that embedded index and queries.
        ids: The ids [Q] of queries that are samples of the index, -1 for other queries. A sample does not vote for
            itself.
        shown: Number of candidates to return for each query.

    Raises:
        NearfarError: If the index has no labels.
    """
    _check_labels(index)
    distances, found = index.search(queries, VOTERS + (ids is not None))
    if ids is not None:
        # Drop the query from its own neighbors. If it is not among them, drop the last neighbor.
        is_self = (found == ids[:, None]) & (ids >= 0)[:, None]
        is_self[~is_self.any(1), -1] = True
        distances, found = (array[~is_self].reshape(len(found), VOTERS) for array in (distances, found))
    return classify_neighbors(index, distances, found, calibration, ids=ids, shown=shown)


def classify_neighbors(
    index: Index,
    distances: Vectors,
    found: Ints,
    calibration: Calibration,
    *,
    ids: Ints | None = None,
    shown: int = SHOWN,
) -> list[Classification]:
    """Return the class of each query, or "unknown", from its nearest neighbors. See `classify`.

    Args:
        index: The index, with labels.
        distances: Distances of the nearest neighbors, ascending [Q, k]. Those after the tenth have no vote.
        found: Ids of these neighbors, -1 for missing neighbors [Q, k]. The query itself must not be among them.
        calibration: The calibration of the model.
        ids: For each query, its id if it is a sample of the index, or -1 [Q].
        shown: Number of candidates to return for each query.

    Raises:
        NearfarError: If the index has no labels.
    """
    numbers = _check_labels(index)
    distances, found = distances[:, :VOTERS], found[:, :VOTERS]
    is_found = found >= 0
    labels = np.full(found.shape, -1, np.int64)
    labels[is_found] = numbers[index.rows_of(found[is_found])]
    probability = np.where(is_found, calibration.probability(np.where(is_found, distances, 2.0)), 0.0)
    sizes = np.bincount(numbers, minlength=len(index.classes))
    own = np.full(len(found), -1, np.int64)
    if ids is not None:
        own[ids >= 0] = numbers[index.rows_of(ids[ids >= 0])]
    results = []
    for classes, scores in zip(*vote(probability, labels, sizes, own=own, shown=shown), strict=True):
        candidates = tuple(
            Candidate(index.classes[number], score)
            for number, score in zip(classes.tolist(), scores.tolist(), strict=True)
            if number >= 0
        )
        highest = candidates[0].score if candidates else 0.0
        is_known = bool(candidates) and highest >= calibration.open_set.threshold
        results.append(
            Classification(
                label=candidates[0].label if is_known else None,
                probability=float(calibration.open_set.curve(highest)),
                candidates=candidates,
            )
        )
    return results


def _check_labels(index: Index) -> Ints:
    if index.labels is None:
        raise NearfarError("the index has no labels, so there are no classes: build it from labeled data")
    return index.labels
