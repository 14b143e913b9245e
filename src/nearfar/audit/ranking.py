"""Rank samples by how likely their label is wrong, from three kinds of evidence in their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nearfar.audit.cutoff import MIN_SAMPLES, find_cutoff
from nearfar.ops.geometry import unit
from nearfar.pacing.objective import Floats, Ints, WeightProblem
from nearfar.pacing.schedule import solve_for_share
from nearfar.pacing.xi import MEMORY_MB, hardness
from nearfar.validation import Embeddings, as_embeddings

SHARES = (0.6, 0.7, 0.8, 0.9)
FACTORS = np.array([1.0, 1.0, 0.5])  # factors of the class centers, the votes and the self-paced weight in the score
SWAPPED = 0.1  # fraction of the labels that `swap_labels` makes wrong on purpose, to see how wrong labels score


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of `audit`. Arrays have shape [N] unless stated otherwise.

    Attributes:
        labels: The given labels.
        score: Higher for labels that are more likely wrong; the mean over all samples is 0.
        suggested: The label that neighbors and class centers suggest; often the given label.
        rival: The most likely label other than the given one.
        neighbors: Rows of the k nearest samples, nearest first, [N, k].
        votes: Number of neighbors with the given label and with the rival, [N, 2].
        similarity: Cosine to the center of the given class and of the rival, [N, 2].
        weight: Self-paced weight, a mean over the fractions `shares` (see `audit`); low for suspicious labels.
        reference: Scores [M] of labels that were made wrong on purpose, on the scale of `score`; see `find_cutoff`.
            Empty if there are fewer than 20 samples.
        classes: Names of the labels, or None.
    """

    labels: Ints
    score: Floats
    suggested: Ints
    rival: Ints
    neighbors: Ints
    votes: Floats
    similarity: Floats
    weight: Floats
    reference: Floats
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.score)

    @cached_property
    def cutoff(self) -> float:
        """Return the lowest score at which a label is more likely wrong than right; see `find_cutoff`."""
        return find_cutoff(self.score, self.reference)

    @cached_property
    def flagged(self) -> NDArray[np.bool_]:
        """Return the mask [N] of labels that are probably wrong.

        The score of such a label is at least the cut-off, and another label is suggested.
        """
        mask: NDArray[np.bool_] = (self.score >= self.cutoff) & (self.suggested != self.labels)
        return mask

    def order(self) -> Ints:
        """Return the rows, most suspicious first; equal scores are ordered by row."""
        return np.argsort(-self.score, kind="stable")

    def name(self, label: int) -> str:
        """Return the name of a label, or its class id as text if there are no names."""
        return str(label) if self.classes is None else self.classes[label]

    def reason(self, row: int) -> str:
        """Describe the evidence for the score of a sample in a few sentences."""
        own, other = self.name(int(self.labels[row])), self.name(int(self.rival[row]))
        k = self.neighbors.shape[1]
        votes, cosines = self.votes[row].round().astype(int).tolist(), self.similarity[row].tolist()
        if k == 1:
            near = f"The nearest neighbor is labeled {self.name(int(self.labels[self.neighbors[row, 0]]))}. "
        else:
            verb = "is" if votes[0] == 1 else "are"
            near = f"Of the {k} nearest neighbors, {votes[0]} {verb} labeled {own} and {votes[1]} {other}. "
        return (
            f"{near}Cosine to the center of the other {own} samples: {cosines[0]:.2f}, "
            f"to the center of {other}: {cosines[1]:.2f}. "
            f"Self-paced weight: {self.weight[row]:.2f}."
        )


def audit(
    embeddings: Embeddings,
    labels: ArrayLike | Tensor,
    *,
    classes: Sequence[str] | None = None,
    k: int = 20,
    center: bool = True,
    shares: Sequence[float] = SHARES,
    memory_mb: int = MEMORY_MB,
) -> Audit:
    """Rank samples by how likely their label is wrong.

    score = z(class centers) + z(votes) + 0.5 z(self-paced), where z subtracts the mean and divides by the standard
    deviation:

    - class centers: cosine to the nearest center of another class, minus cosine to the center of the other samples of
      the given class, where a center is a mean of unit embeddings;
    - votes: log(1 + v) - log(1 + u), where u is the number of votes for the given label among the k nearest neighbors,
      and v the largest number of votes for any other label;
    - self-paced: 1 minus the sample weight that BSPML (balanced self-paced metric learning) computes with mu=1 and
      threshold=1, averaged over the fractions `shares`.

    We chose the factors 1, 1 and 0.5, k=20 and the fractions on CUB feature vectors and on pixels of drawings, both
    with injected noise (docs/methods/bspml.md has the numbers). The computation is blockwise: no N x N matrix is
    stored.

    Args:
        embeddings: Embeddings from any model, [N, d].
        labels: Class ids, [N].
        classes: Names of the class ids.
        k: Number of neighbors that vote.
        center: Whether to subtract the mean embedding first. This helps with non-negative features, whose
            cosines would otherwise all be high.
        shares: Fractions of the samples to keep. The self-paced weights are computed once for each fraction and
            averaged.
        memory_mb: Memory limit of a block, in MiB.

    >>> rows = torch.cat([torch.eye(2)[[0]].repeat(5, 1), torch.eye(2)[[1]].repeat(5, 1)]) + 0.01 * torch.randn(10, 2)
    >>> result = audit(rows, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1], k=3)
    >>> result.order()[0].item(), result.suggested[4].item()
    (4, 0)
    """
    rows = as_embeddings(embeddings, name="embeddings")
    rows = rows if rows.dtype == torch.float64 else rows.float()
    label_array = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if label_array.shape != (len(rows),) or label_array.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be integer class ids of shape [{len(rows)}], got {label_array.dtype} of shape "
            f"{list(label_array.shape)}"
        )
    if not bool(torch.isfinite(rows.sum())):
        raise ValueError("embeddings contain NaN or infinite values: remove these rows")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    ids, number = np.unique(label_array, return_inverse=True)
    if len(ids) < 2:
        raise ValueError(f"labels must have at least 2 classes, got {len(ids)}")
    if classes is not None and int(ids[-1]) >= len(classes):
        raise ValueError(f"classes must have a name for every label from 0 to {ids[-1]}, got {len(classes)} names")

    x = unit(rows - rows.mean(0) if center else rows)
    y = torch.from_numpy(number.astype(np.int64)).to(x.device)
    k = min(k, len(x) - 1)
    evidence, weight, terms = _judge(x, y, k, shares, memory_mb)
    mean, deviation = terms.mean(0), np.where(terms.std(0) > 0, terms.std(0), 1.0)
    score: Floats = (terms - mean) / deviation @ FACTORS

    wrong, swapped = swap_labels(number)
    reference: Floats = np.zeros(0)
    if len(x) >= MIN_SAMPLES and len(np.unique(wrong)) > 1:
        _, _, wrong_terms = _judge(x, torch.from_numpy(wrong).to(x.device), k, shares, memory_mb)
        reference = (wrong_terms[swapped] - mean) / deviation @ FACTORS

    # There are two candidates for the rival: the class with the nearest center and the class with the most votes. Take
    # the one with the larger sum of similarity and log(1 + votes), each scaled as in the score.
    sims, votes = evidence["rival_similarity"], evidence["rival_votes"]
    scale = _deviation(evidence["class_other"] - evidence["class_own"])
    vote_scale = _deviation(np.log1p(evidence["votes_other"]) - np.log1p(evidence["votes_own"]))
    strength = sims / scale + np.log1p(votes) / vote_scale
    own = evidence["class_own"] / scale + np.log1p(evidence["votes_own"]) / vote_scale
    line, chosen = np.arange(len(x)), strength.argmax(1)
    rival = evidence["rivals"][line, chosen]
    return Audit(
        labels=label_array.astype(np.int64),
        score=score,
        suggested=ids[np.where(strength[line, chosen] > own, rival, number)].astype(np.int64),
        rival=ids[rival].astype(np.int64),
        neighbors=evidence["neighbors"],
        votes=np.stack([evidence["votes_own"], votes[line, chosen]], 1),
        similarity=np.stack([evidence["class_own"], sims[line, chosen]], 1),
        weight=weight,
        reference=reference,
        classes=None if classes is None else tuple(classes),
    )


def compute_self_paced_weight(
    x: Tensor, y: Tensor, *, shares: Sequence[float] = SHARES, memory_mb: int = MEMORY_MB
) -> Floats:
    """Return the sample weights [N] of BSPML (balanced self-paced metric learning), averaged over `shares`.

    Args:
        x: Unit embeddings [N, d].
        y: Labels [N].
        shares: Fractions of the samples to keep. The weights are computed once for each fraction.
        memory_mb: Memory limit of a block, in MiB.
    """
    pos, neg = hardness(x, y, memory_mb=memory_mb)
    problem = WeightProblem.of(pos.cpu().numpy(), neg.cpu().numpy(), y.cpu().numpy(), age=0.0, mu=1.0)
    weight: Floats = np.mean([solve_for_share(problem, share, tolerance=1e-3)[0].weights for share in shares], axis=0)
    return weight


def swap_labels(labels: Ints) -> tuple[Ints, Ints]:
    """Give a random tenth of the samples another label that occurs in the data.

    Returns:
        The new labels [N], and the rows whose label changed, in ascending order.

    >>> labels, rows = swap_labels(np.repeat([0, 1, 2], 20))
    >>> len(rows), bool((labels[rows] != np.repeat([0, 1, 2], 20)[rows]).all())
    (6, True)
    """
    rng = np.random.default_rng(0)
    present = np.unique(labels)
    rows = np.sort(rng.choice(len(labels), max(1, round(SWAPPED * len(labels))), replace=False))
    result = labels.astype(np.int64)
    position = np.searchsorted(present, result[rows])
    result[rows] = present[(position + rng.integers(1, len(present), len(rows))) % len(present)]
    return result, rows


def _judge(
    x: Tensor, y: Tensor, k: int, shares: Sequence[float], memory_mb: int
) -> tuple[dict[str, NDArray[Any]], Floats, Floats]:
    """Return the evidence of `_collect_evidence`, the self-paced weights [N], and the three terms of the score [N, 3].

    The terms are those of the class centers, the votes and the self-paced weights (see `audit`).
    """
    evidence = _collect_evidence(x, y, k, memory_mb)
    weight = compute_self_paced_weight(x, y, shares=shares, memory_mb=memory_mb)
    centers = evidence["class_other"] - evidence["class_own"]
    votes = np.log1p(evidence["votes_other"]) - np.log1p(evidence["votes_own"])
    return evidence, weight, np.stack([centers, votes, 1 - weight], 1)


def _deviation(values: Floats) -> float:
    return float(values.std()) or 1.0


@torch.no_grad()
def _collect_evidence(x: Tensor, y: Tensor, k: int, memory_mb: int) -> dict[str, NDArray[Any]]:
    """Return the neighbors, the votes and the similarities to class centers of unit embeddings.

    They are computed block by block.
    """
    classes = int(y.max()) + 1
    sums = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, y, x)
    centers = unit(sums)
    parts: list[dict[str, Tensor]] = []
    step = max(1, memory_mb * 2**20 // (2 * x.element_size() * (len(x) + 2 * classes)))
    for start in range(0, len(x), step):
        here = x[start : start + step]
        label = y[start : start + step, None]
        line = torch.arange(len(here), device=x.device)
        sim = here @ x.T
        sim[line, line + start] = -torch.inf
        nearest = sim.topk(k, dim=1).indices
        votes = torch.zeros(len(here), classes, dtype=x.dtype, device=x.device)
        votes.scatter_add_(1, y[nearest], torch.ones_like(nearest, dtype=x.dtype))
        to_center = here @ centers.T
        own_center = (here * unit(sums[label[:, 0]] - here)).sum(1)
        own_votes = votes.gather(1, label)[:, 0]

        to_center.scatter_(1, label, -torch.inf)
        by_center = to_center.argmax(1)
        # Choose the label with the most votes, and among equal votes the one with the nearest center. The factor 8
        # ensures this order: one vote more outweighs any difference between two cosines, which is at most 2.
        by_votes = (votes.scatter(1, label, -1.0) * 8 + to_center).argmax(1)
        rivals = torch.stack([by_center, by_votes], 1)
        parts.append(
            {
                "neighbors": nearest,
                "rivals": rivals,
                "rival_similarity": to_center.gather(1, rivals),
                "rival_votes": votes.gather(1, rivals),
                "class_own": own_center,
                "class_other": to_center.gather(1, by_center[:, None])[:, 0],
                "votes_own": own_votes,
                "votes_other": votes.gather(1, by_votes[:, None])[:, 0],
            }
        )
    arrays = {key: torch.cat([part[key] for part in parts]).cpu().numpy() for key in parts[0]}
    return {key: value if value.dtype.kind == "i" else value.astype(np.float64) for key, value in arrays.items()}
