"""Measure what a loss does on a batch: for the log, for warnings, and to find out why training does not progress.

Losses do not collect these numbers themselves, so they cost nothing unless a function of this module is called.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from nearfar.losses.base import full_precision
from nearfar.losses.pair_loss import PairLoss, check_representatives, make_batch
from nearfar.ops.geometry import unit

MAX_EMBEDDINGS = 64


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of a batch.

    Attributes:
        active_pairs: Fraction of the pairs whose similarity has a nonzero gradient.
        anchors_without_positives: Fraction of the anchors that have no positive.
        norm_mean: Mean norm of the embeddings.
        norm_std: Standard deviation of the norms.
        effective_rank: Effective number of directions that the embeddings span. For B embeddings of dimension d, it is
            between 1 (collapsed to a line) and min(B, d).
    """

    active_pairs: float
    anchors_without_positives: float
    norm_mean: float
    norm_std: float
    effective_rank: float

    def to_dict(self) -> dict[str, float]:
        """Return the measurements as a dictionary, for a log."""
        return asdict(self)


def diagnose(
    loss: PairLoss,
    embeddings: Tensor,
    labels: Tensor,
    *,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    weights: Tensor | None = None,
    ref_weights: Tensor | None = None,
    representatives: int | None = None,
) -> Diagnosis:
    """Measure what a pair loss does on a batch, without changing anything. The arguments are those of the loss.

    >>> from nearfar.losses import create
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]])
    >>> diagnosis = diagnose(create("contrastive"), x, torch.tensor([0, 0, 1, 2]))
    >>> diagnosis.active_pairs, diagnosis.anchors_without_positives  # one of six pairs, two of four anchors
    (0.16666666666666666, 0.5)
    """
    active_pairs, anchors_without_positives = pair_activity(
        loss,
        embeddings,
        labels,
        ref_emb=ref_emb,
        ref_labels=ref_labels,
        weights=weights,
        ref_weights=ref_weights,
        representatives=representatives,
    )
    norms = torch.linalg.vector_norm(full_precision(embeddings.detach()), dim=1)
    return Diagnosis(
        active_pairs=active_pairs,
        anchors_without_positives=anchors_without_positives,
        norm_mean=float(norms.mean()),
        norm_std=float(norms.std(correction=0)),
        effective_rank=effective_rank(embeddings),
    )


def pair_activity(
    loss: PairLoss,
    embeddings: Tensor,
    labels: Tensor,
    *,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    weights: Tensor | None = None,
    ref_weights: Tensor | None = None,
    representatives: int | None = None,
) -> tuple[float, float]:
    """Return the fractions of active pairs and of anchors without positives, as in `Diagnosis`.

    The computation takes about as long as that of the loss.
    """
    if not isinstance(loss, PairLoss):
        raise ValueError(f"loss must be a pair loss, got {type(loss).__name__}")
    batch = make_batch(embeddings.detach(), labels, ref_emb, ref_labels, weights, ref_weights)
    if representatives is not None:
        check_representatives(representatives, batch)
    batch = loss.arrange(batch, representatives)
    with torch.enable_grad(), torch.autocast(embeddings.device.type, enabled=False):
        pairs = loss.pairs(batch)
        sim = pairs.sim.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss.cost(replace(pairs, sim=sim), batch), sim)
    valid = pairs.same | pairs.diff
    active = (gradient[: len(valid)] != 0) & valid  # the angular loss appends rows for its references
    active_share = int(torch.count_nonzero(active)) / max(1, int(torch.count_nonzero(valid)))
    return active_share, 1 - int(torch.count_nonzero(pairs.same.any(1))) / len(valid)


def effective_rank(embeddings: Tensor) -> float:
    """Compute the exponential of the entropy of the normalized singular values (Roy and Vetterli, EUSIPCO 2007).

    Returns 0 if all embeddings are zero.

    >>> round(effective_rank(torch.eye(3)), 6), round(effective_rank(torch.ones(3, 3)), 3)
    (3.0, 1.0)
    """
    x = full_precision(embeddings.detach()).double()
    # the singular values follow from the smaller Gram matrix, several times faster than from a decomposition of x
    gram = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    s = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    if not s.sum() > 0:
        return 0.0
    p = s / s.sum()
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))


def batch_statistics(
    loss: nn.Module, embeddings: Tensor, labels: Tensor, *, weights: Tensor | None, representatives: int | None
) -> dict[str, float]:
    """Compute statistics of a training batch for the log.

    Returns:
        Three statistics of the first 64 embeddings: `norm`, their mean norm; `spread`, 1 minus the norm of the mean
        unit vector, which is 0 if all directions are equal; and `rank`, the effective rank of the unit vectors. For
        pair losses also `active_pairs` and `without_positives` of the whole batch, as in `Diagnosis`.
    """
    some = embeddings[:MAX_EMBEDDINGS].float()
    directions = unit(some)
    statistics = {
        "norm": float(torch.linalg.vector_norm(some, dim=1).mean()),
        "spread": 1 - float(torch.linalg.vector_norm(directions.mean(0))),
        "rank": effective_rank(directions),
    }
    if isinstance(loss, PairLoss):
        statistics["active_pairs"], statistics["without_positives"] = pair_activity(
            loss, embeddings, labels, weights=weights, representatives=representatives
        )
    return statistics


def batch_warnings(statistics: dict[str, float], *, dim: int, batch_size: int) -> dict[str, str]:
    """Return warnings about a batch, each with advice, by kind of problem.

    >>> list(batch_warnings({"norm": 1.0, "spread": 1e-6, "rank": 1.0}, dim=64, batch_size=64))
    ['collapse']
    """
    found = {}
    spread, rank = statistics["spread"], statistics["rank"]
    if batch_size > 2 and (spread < 1e-3 or (dim > 2 and rank < 1.5)):
        found["collapse"] = (
            f"the embeddings have collapsed to one direction (spread {spread:.1e}, rank {rank:.1f}): "
            "lower optimizer.lr, or use a loss or a mining method that uses more than the hardest pairs"
        )
    if statistics.get("without_positives", 0.0) > 0.5:
        found["positives"] = (
            f"{statistics['without_positives']:.0%} of the anchors have no positive in their batch: "
            "use batches.name=pk with batches.per_class of at least 2"
        )
    return found
