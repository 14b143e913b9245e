"""Which labels are probably wrong: three witnesses on one set of embeddings, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from nearfar.ops.geometry import unit
from nearfar.pacing.objective import Floats, Ints, WeightProblem
from nearfar.pacing.schedule import solve_for_share
from nearfar.pacing.xi import MEMORY_MB, hardness
from nearfar.validation import Embeddings, as_embeddings

SHARES = (0.6, 0.7, 0.8, 0.9)
SELF_PACED_WEIGHT = 0.5


@dataclass(frozen=True, eq=False)
class Audit:
    """What `audit` found of every sample, [N] each.

    `score` ranks: the higher, the more probably the label is wrong; about 0 on average. `suggested` is the label that
    the neighbors and class centers speak for, the sample's own where they do. `neighbors` [N, k] are rows, the
    nearest first. `votes` and `similarity` [N, 2] belong to the own and to the best other label `rival`: how many of
    the neighbors have it, and the cosine to its center. `weight` is the mean self-paced weight.
    """

    labels: Ints
    score: Floats
    suggested: Ints
    rival: Ints
    neighbors: Ints
    votes: Floats
    similarity: Floats
    weight: Floats
    classes: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.score)

    def order(self) -> Ints:
        """Rows, the most suspicious first; ties by row."""
        return np.argsort(-self.score, kind="stable")

    def name(self, label: int) -> str:
        """What a label is called."""
        return str(label) if self.classes is None else self.classes[label]

    def reason(self, row: int) -> str:
        """Why a sample is where it is in the order, in a sentence or two."""
        own, other = self.name(int(self.labels[row])), self.name(int(self.rival[row]))
        k = self.neighbors.shape[1]
        votes, sims = self.votes[row].round().astype(int).tolist(), self.similarity[row].tolist()
        return (
            f"Of the {k} nearest, {votes[0]} are {own} and {votes[1]} {other}. "
            f"Similarity to the rest of {own} {sims[0]:.2f}, to {other} {sims[1]:.2f}. "
            f"Self-paced weight {self.weight[row]:.2f}."
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
    """Rank samples by how probably their label is wrong, from embeddings [N, d] of any model and labels [N].

    score = z(center) + z(votes) + 0.5 z(self-paced), z: minus the mean, over the standard deviation, and

    - center: cosine to the nearest other class mean, minus that to the mean of the own class without the sample;
    - votes: log(1 + most votes of another label) - log(1 + votes of the own) among the k nearest others;
    - self-paced: 1 - the mean of BSPML's weights (mu=1, threshold=1) at the given shares of samples kept.

    The weights 1, 1, 0.5, k=20 and the shares are ours, chosen on CUB vectors and on pixels of drawings with injected
    noise (docs/methods/bspml.md has the numbers). `center` subtracts the mean embedding first, which lets features that
    are all positive point in different directions. Everything is blockwise: no N x N matrix is held.

    >>> rows = torch.cat([torch.eye(2)[[0]].repeat(5, 1), torch.eye(2)[[1]].repeat(5, 1)]) + 0.01 * torch.randn(10, 2)
    >>> found = audit(rows, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1], k=3)
    >>> found.order()[0].item(), found.suggested[4].item()
    (4, 0)
    """
    rows = as_embeddings(embeddings, name="embeddings")
    rows = rows if rows.dtype == torch.float64 else rows.float()
    given = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if given.shape != (len(rows),) or given.dtype.kind not in "iu":
        raise ValueError(f"labels must be class ids [{len(rows)}], got {given.dtype} of shape {list(given.shape)}")
    if not bool(torch.isfinite(rows.sum())):
        raise ValueError("embeddings have NaN or infinite values: remove such rows")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    ids, number = np.unique(given, return_inverse=True)
    if len(ids) < 2:
        raise ValueError(f"labels must be of at least 2 classes, got {len(ids)}: there is nothing to confuse")
    if classes is not None and int(ids[-1]) >= len(classes):
        raise ValueError(f"classes has {len(classes)} names but labels go up to {ids[-1]}")

    x = unit(rows - rows.mean(0) if center else rows)
    y = torch.from_numpy(number.astype(np.int64)).to(x.device)
    near = _neighborhood(x, y, min(k, len(x) - 1), memory_mb)
    weight = self_paced_weight(x, y, shares=shares, memory_mb=memory_mb)

    centroid = standard(near["center_other"] - near["center_own"])
    vote = standard(np.log1p(near["votes_other"]) - np.log1p(near["votes_own"]))
    score = centroid + vote + SELF_PACED_WEIGHT * standard(1 - weight)

    # the two rivals, by center and by votes, each with both kinds of evidence in the units of the score
    sims, votes = near["rival_similarity"], near["rival_votes"]
    scale = _deviation(near["center_other"] - near["center_own"])
    vote_scale = _deviation(np.log1p(near["votes_other"]) - np.log1p(near["votes_own"]))
    strength = sims / scale + np.log1p(votes) / vote_scale
    own = near["center_own"] / scale + np.log1p(near["votes_own"]) / vote_scale
    line, chosen = np.arange(len(x)), strength.argmax(1)
    rival = near["rivals"][line, chosen]
    return Audit(
        labels=given.astype(np.int64),
        score=score,
        suggested=ids[np.where(strength[line, chosen] > own, rival, number)].astype(np.int64),
        rival=ids[rival].astype(np.int64),
        neighbors=near["neighbors"],
        votes=np.stack([near["votes_own"], votes[line, chosen]], 1),
        similarity=np.stack([near["center_own"], sims[line, chosen]], 1),
        weight=weight,
        classes=None if classes is None else tuple(classes),
    )


def self_paced_weight(x: Tensor, y: Tensor, *, shares: Sequence[float] = SHARES, memory_mb: int = MEMORY_MB) -> Floats:
    """The mean over the shares of BSPML's weights at these embeddings, [N]."""
    pos, neg = hardness(x, y, memory_mb=memory_mb)
    problem = WeightProblem.of(pos.cpu().numpy(), neg.cpu().numpy(), y.cpu().numpy(), age=0.0, mu=1.0)
    found: Floats = np.mean([solve_for_share(problem, share, tolerance=1e-3)[0].weights for share in shares], axis=0)
    return found


def standard(values: Floats) -> Floats:
    """Minus the mean, over the standard deviation; zeros where all values are equal."""
    result: Floats = (values - values.mean()) / _deviation(values)
    return result


def _deviation(values: Floats) -> float:
    return float(values.std()) or 1.0


@torch.no_grad()
def _neighborhood(x: Tensor, y: Tensor, k: int, memory_mb: int) -> dict[str, NDArray[Any]]:
    """Neighbors, votes and centers of unit rows, block by block."""
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
        # of several labels with the most votes the one whose center is nearest
        by_votes = (votes.scatter(1, label, -1.0) * 8 + to_center).argmax(1)
        rivals = torch.stack([by_center, by_votes], 1)
        parts.append(
            {
                "neighbors": nearest,
                "rivals": rivals,
                "rival_similarity": to_center.gather(1, rivals),
                "rival_votes": votes.gather(1, rivals),
                "center_own": own_center,
                "center_other": to_center.gather(1, by_center[:, None])[:, 0],
                "votes_own": own_votes,
                "votes_other": votes.gather(1, by_votes[:, None])[:, 0],
            }
        )
    whole = {key: torch.cat([part[key] for part in parts]).cpu().numpy() for key in parts[0]}
    return {key: value if value.dtype.kind == "i" else value.astype(np.float64) for key, value in whole.items()}
