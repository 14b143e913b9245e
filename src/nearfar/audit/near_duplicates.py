"""Find near duplicates (samples that are almost the same) and outliers (samples that are far from all others)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.audit.ranking import Audit
from nearfar.ops.geometry import unit
from nearfar.validation import Array, Embeddings, Floats, Ints, as_embeddings

# Two samples are near duplicates if their distance is below this fraction of the median distance between a sample and
# its nearest neighbor. Datalab in the package cleanlab uses the same value.
DUPLICATE_FRACTION = 0.13
# For each sample, take the logarithm of its mean cosine with its OUTLIER_NEIGHBORS nearest neighbors. The sample is an
# outlier if this value is below the first quartile of all values by more than FENCE times their interquartile range
# (Tukey's fence, Exploratory Data Analysis, 1977). The logarithm is necessary because the cosines of unrelated samples
# are close to 0: without it, the limit can be so low that no sample is below it.
FENCE = 1.5
OUTLIER_NEIGHBORS = 10
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class DuplicateGroup:
    """A group of near duplicates. Each sample in the group is a near duplicate of at least one other.

    Attributes:
        rows: Rows of the samples, ascending.
        distance: The smallest distance (1 - cosine) between two samples of the group.
        is_across_splits: Whether the samples are in different splits, which makes test scores too high.
        has_several_labels: Whether the samples have different labels. If so, at least one label is probably wrong.
    """

    rows: Ints
    distance: float
    is_across_splits: bool
    has_several_labels: bool


@dataclass(frozen=True, eq=False)
class Neighborhoods:
    """Near duplicates and outliers of a dataset.

    Attributes:
        groups: Groups of near duplicates, sorted by three keys: groups across splits first, then groups with several
            labels first, then by the smallest distance in the group.
        outliers: Rows of the outliers, in descending order of `distance`.
        distance: Mean distance of each sample to its ten nearest neighbors [N].
    """

    groups: tuple[DuplicateGroup, ...]
    outliers: Ints
    distance: Floats


def find_near_duplicates(audit: Audit, embeddings: Embeddings, split: Array, *, center: bool = True) -> Neighborhoods:
    """Find near duplicates and outliers from the nearest neighbors of an audit.

    Args:
        audit: The audit, which has the nearest neighbors of each sample.
        embeddings: The embeddings [N, d] that were audited.
        split: The split of each sample [N].
        center: Whether to subtract the mean embedding, as in the audit.
    """
    distance = _neighbor_distances(audit.neighbors, embeddings, center)
    limit = DUPLICATE_FRACTION * float(np.median(distance.min(1)))
    # If more than half of the samples have an exact duplicate, the median is 0, and only exact duplicates are found.
    limit = max(limit, float(np.finfo(np.float32).eps) * 8)
    left, column = np.nonzero(distance < limit)
    right = audit.neighbors[left, column]
    groups = _connect(left, right, distance[left, column], len(audit))
    found = [
        DuplicateGroup(rows, near, len(set(split[rows].tolist())) > 1, len(np.unique(audit.labels[rows])) > 1)
        for rows, near in groups
    ]
    found.sort(key=lambda group: (not group.is_across_splits, not group.has_several_labels, group.distance))
    mean = distance[:, :OUTLIER_NEIGHBORS].mean(1)
    order = np.argsort(-mean, kind="stable")
    return Neighborhoods(tuple(found), order[_is_outside(mean)[order]], mean)


def _is_outside(mean: Floats) -> NDArray[np.bool_]:
    """Return which samples are outliers [N], given the mean distance of each sample to its nearest neighbors [N]."""
    similarity = np.log(np.maximum(1 - mean, 1e-6))
    low, high = np.percentile(similarity, [25, 75])
    is_far: NDArray[np.bool_] = similarity < low - FENCE * max(high - low, 1e-6)
    return is_far


def _neighbor_distances(neighbors: Ints, embeddings: Embeddings, center: bool) -> Floats:
    """Return the distance [N, k] of each sample to each of its neighbors, in the order of `neighbors`."""
    rows = as_embeddings(embeddings, name="embeddings")
    rows = rows if rows.dtype == torch.float64 else rows.float()
    x = unit(rows - rows.mean(0) if center else rows).cpu()
    parts = []
    for start in range(0, len(x), BLOCK):
        near = x[torch.from_numpy(neighbors[start : start + BLOCK])]
        cosine = torch.einsum("nd,nkd->nk", x[start : start + BLOCK], near)
        parts.append((1 - cosine).clamp_min(0).double().numpy())
    return np.concatenate(parts)


def _connect(left: Ints, right: Ints, distance: Floats, count: int) -> list[tuple[Ints, float]]:
    """Return the connected components of a graph, each as its rows and the smallest distance of its edges.

    Args:
        left: One row of each edge.
        right: The other row of each edge.
        distance: Distance between the two rows of each edge.
        count: Number of rows. Rows without an edge are left out of the result.
    """
    parent = np.arange(count)

    def find(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = int(parent[row])
        return row

    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        parent[find(a)] = find(b)
    members: dict[int, list[int]] = {}
    nearest: dict[int, float] = {}
    for a, value in zip(left.tolist(), distance.tolist(), strict=True):
        root = find(a)
        nearest[root] = min(nearest.get(root, np.inf), value)
    for row in sorted({*left.tolist(), *right.tolist()}):
        members.setdefault(find(row), []).append(row)
    return [(np.array(rows, np.int64), nearest[root]) for root, rows in members.items()]
