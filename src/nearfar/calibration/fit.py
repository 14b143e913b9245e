"""Measure a calibration on embeddings of classes that the model was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nearfar.calibration.error import estimate_error
from nearfar.calibration.neighbors import find_neighbors
from nearfar.calibration.stored import Calibration, Estimate, NeighborProbability, OpenSet, Verification
from nearfar.calibration.votes import VOTERS, vote
from nearfar.metrics.detection import auroc
from nearfar.metrics.open_set import TPR, accept_threshold, fpr_at_tpr
from nearfar.metrics.probability import Curve, fit_curve, reliability
from nearfar.metrics.verification import (
    FMRS,
    MAX_PAIRS,
    Pairs,
    collect_pairs,
    equal_error_rate,
    find_threshold,
    measure_operating_points,
    percentile_interval,
    rejected_share,
)
from nearfar.ops.geometry import unit
from nearfar.validation import Embeddings, Floats, Ints, as_embeddings

REPLICATES = 200
MIN_CLASSES = 4
ROC_POINTS = 60


@dataclass(frozen=True, eq=False)
class _Arrangement:
    """The result of classifying N queries with a gallery that contains only half of the classes.

    Attributes:
        score: The score of the best class of each query [N].
        is_known: Whether the class of each query is in the gallery [N].
        is_correct: Whether the best class is the class of the query [N].
        classes: The class number of each query [N].
    """

    score: Floats
    is_known: NDArray[np.bool_]
    is_correct: NDArray[np.bool_]
    classes: Ints


def calibrate(
    embeddings: Embeddings,
    labels: ArrayLike,
    *,
    method: str = "logistic",
    fmrs: tuple[float, ...] = FMRS,
    limit: int = MAX_PAIRS,
    seed: int = 0,
) -> Calibration:
    """Measure thresholds and probabilities for distances, on samples of classes that the model was not trained on.

    Three questions are answered separately, because they are about different pairs of samples:

    - Verification: do two given samples have the same class? All pairs count; see `nearfar.metrics.verification`.
    - Search: does a search result have the class of the query? A search result is the nearest of many samples, so it
      has the class of the query more often than an arbitrary sample at the same distance. The curve from distance to
      probability is therefore fitted on the ten nearest neighbors of each sample.
    - Classification: which of the known classes does a query have, or is its class unknown? Half of the classes are
      treated as known and the other half as unknown. Then the two halves are swapped. A class with a single sample is
      always treated as unknown.

    The calibration errors of both curves are measured on classes that were not used for fitting. For this, the classes
    are divided at random into two halves. The curves are fitted on one half and measured on the other, and then the
    halves are swapped. The threshold for unknown classes is tested in the same way (`OpenSet.accepted`). The rest uses
    all classes: the curves and thresholds that are returned, the error rates of verification, and the weights of the
    votes in classification.

    Args:
        embeddings: Embeddings [N, d].
        labels: Class numbers [N]. At least four classes must have two or more samples.
        method: "logistic" or "isotonic", the type of the probability curves. An isotonic curve needs thousands of
            samples.
        fmrs: False match rates to find thresholds for. A false match rate is the fraction of pairs of different classes
            that a threshold accepts.
        limit: The largest number of pairs of the same class, and of pairs of different classes; see `collect_pairs`.
        seed: Seed of the halves, of the sample of pairs, and of the bootstrap.

    Raises:
        ValueError: If there are too few classes.
    """
    numbers = np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64).reshape(-1)
    vectors = unit(as_embeddings(embeddings, name="embeddings").float())
    sizes = np.bincount(numbers)
    usable = np.flatnonzero(sizes > 1)
    if len(usable) < MIN_CLASSES:
        raise ValueError(
            f"labels must have at least {MIN_CLASSES} classes of two or more samples, got {len(usable)}: "
            "calibrate on data with more classes"
        )
    order = np.random.default_rng(seed).permutation(usable)
    halves = (order[: len(order) // 2], order[len(order) // 2 :])
    same = _fit_neighbors(vectors, numbers, halves, method, seed)
    return Calibration(
        model="",
        dim=vectors.shape[1],
        data="",
        split="",
        samples=len(numbers),
        classes=len(sizes),
        trained=0,
        verification=_verify(*collect_pairs(vectors, numbers, limit=limit, seed=seed), fmrs, seed),
        same=same,
        open_set=_fit_open_set(vectors, numbers, halves, same.curve, method, seed),
    )


def _verify(same: Pairs, different: Pairs, fmrs: tuple[float, ...], seed: int) -> Verification:
    distances = np.concatenate([same.distance, different.distance])
    is_different = np.repeat([False, True], [len(same), len(different)])
    rates = np.geomspace(min(1.0, max(1e-5, 1 / len(different))), 1.0, ROC_POINTS)
    roc = []
    for rate in rates.tolist():
        threshold = find_threshold(different.distance, rate)
        roc.append((1 - rejected_share(different.distance, threshold), rejected_share(same.distance, threshold)))
    return Verification(
        auroc=auroc(distances, is_different),
        equal_error=equal_error_rate(same, different),
        points=tuple(measure_operating_points(same, different, fmrs=tuple(sorted(set(fmrs), reverse=True)), seed=seed)),
        roc=tuple(roc),
    )


def _fit_neighbors(
    vectors: Tensor, numbers: Ints, halves: tuple[Ints, Ints], method: str, seed: int
) -> NeighborProbability:
    """Fit the curve from the distance of a neighbor to the probability that it has the class of the query.

    The returned curve is fitted on all classes. Its error is estimated by fitting on each half of the classes and
    testing on the other half.
    """
    hits = [_collect_hits(vectors, numbers, np.flatnonzero(np.isin(numbers, half))) for half in halves]
    curves = [fit_curve(method, distance, truth, is_increasing=False) for distance, truth, _ in hits]
    predicted = np.concatenate([curves[1](hits[0][0]), curves[0](hits[1][0])])
    truth, classes = (np.concatenate([hits[0][i], hits[1][i]]) for i in (1, 2))
    distance, is_same, _ = _collect_hits(vectors, numbers, np.arange(len(numbers)))
    return NeighborProbability(
        curve=fit_curve(method, distance, is_same, is_increasing=False),
        neighbors=VOTERS,
        error=estimate_error(predicted, truth, classes, seed=seed),
        reliability=tuple(reliability(predicted, truth)),
    )


def _collect_hits(vectors: Tensor, numbers: Ints, rows: Ints) -> tuple[Floats, NDArray[np.bool_], Ints]:
    """Find the nearest neighbors of each sample in `rows` among the other samples in `rows`.

    Returns:
        For each pair of a sample and a neighbor: the distance, whether both have the same class, and the class of the
        sample.
    """
    distance, found = find_neighbors(vectors, rows, rows, VOTERS)
    is_found = (found >= 0).ravel()
    classes = np.repeat(numbers[rows], VOTERS)
    return distance.ravel()[is_found], (numbers[found].ravel() == classes)[is_found], classes[is_found]


def _fit_open_set(
    vectors: Tensor, numbers: Ints, halves: tuple[Ints, Ints], curve: Curve, method: str, seed: int
) -> OpenSet:
    parts = [_arrange(vectors, numbers, known, curve) for known in halves]
    known = [(part.score[part.is_known], part.is_correct[part.is_known]) for part in parts]
    curves = [fit_curve(method, score, correct, is_increasing=True) for score, correct in known]
    thresholds = [accept_threshold(score) for score, _ in known]
    predicted = np.concatenate([curves[1](known[0][0]), curves[0](known[1][0])])
    scores, correct = (np.concatenate([known[0][i], known[1][i]]) for i in (0, 1))
    classes = np.concatenate([part.classes[part.is_known] for part in parts])
    joined = _Arrangement(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))
    first = np.arange(len(joined.score)) < len(parts[0].score)

    def mean_over_parts(measure: Callable[[Floats, NDArray[np.bool_]], float], rows: Ints) -> float:
        chosen = [rows[first[rows]], rows[~first[rows]]]
        values = [
            measure(joined.score[part], joined.is_known[part])
            for part in chosen
            if 0 < int(joined.is_known[part].sum()) < len(part)
        ]
        return float(np.mean(values)) if values else float("nan")

    swapped = list(zip(parts, thresholds[::-1], strict=True))
    return OpenSet(
        curve=fit_curve(method, scores, correct, is_increasing=True),
        threshold=accept_threshold(scores),
        accuracy=float(correct.mean()),
        error=estimate_error(predicted, correct, classes, seed=seed),
        auroc=_bootstrap(joined.classes, seed, lambda rows: mean_over_parts(auroc, rows)),
        fpr=_bootstrap(joined.classes, seed, lambda rows: mean_over_parts(lambda s, t: fpr_at_tpr(s, t, TPR), rows)),
        accepted=float(np.concatenate([part.score[part.is_known] >= limit for part, limit in swapped]).mean()),
        rejected=float(np.concatenate([part.score[~part.is_known] < limit for part, limit in swapped]).mean()),
    )


_FIELDS = ("score", "is_known", "is_correct", "classes")


def _arrange(vectors: Tensor, numbers: Ints, known: Ints, curve: Curve) -> _Arrangement:
    """Classify all samples by the votes of their nearest neighbors in a gallery that has only the known classes.

    A sample is not its own neighbor.

    Args:
        vectors: Unit vectors [N, d].
        numbers: Class numbers of the samples [N].
        known: Class numbers of the known classes.
        curve: Maps the distance of a neighbor to the weight of its vote, the probability of the same class.
    """
    is_known = np.isin(numbers, known)
    gallery = np.flatnonzero(is_known)
    queries = np.arange(len(numbers))
    distance, rows = find_neighbors(vectors, queries, gallery, VOTERS)
    labels = np.where(rows >= 0, numbers[rows], -1)
    probability = np.where(rows >= 0, curve(np.where(rows >= 0, distance, 2.0)), 0.0)
    sizes = np.bincount(numbers[gallery], minlength=int(numbers.max()) + 1)
    best, score = vote(probability, labels, sizes, own=np.where(is_known, numbers, -1))
    return _Arrangement(score[:, 0], is_known, best[:, 0] == numbers, numbers)


def _bootstrap(classes: Ints, seed: int, measure: Callable[[Ints], float]) -> Estimate:
    """Return a measured value with a 95% interval from a bootstrap that draws classes with replacement.

    Args:
        classes: The class number of each row.
        seed: Seed of the bootstrap.
        measure: A function that takes row indices and returns the value that is measured on these rows.
    """
    order = np.argsort(classes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(classes[order])) + 1)
    rng = np.random.default_rng(seed)
    values = [
        measure(np.concatenate([groups[i] for i in rng.integers(0, len(groups), len(groups))]))
        for _ in range(REPLICATES)
    ]
    return Estimate(measure(np.arange(len(classes))), *percentile_interval(np.array(values)))
