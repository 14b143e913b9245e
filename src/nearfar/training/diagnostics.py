"""What a batch and a loss look like from inside: for logs, and for finding out why nothing is learned.

Nothing here runs unless it is called; losses carry no counters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from nearfar.losses.base import full_precision
from nearfar.losses.pair_loss import PairLoss, check_representatives, make_batch


@dataclass(frozen=True)
class Diagnosis:
    """One look at a batch.

    active_pairs: the share of pairs whose similarity the loss would change (its gradient there is not zero).
    anchors_without_positives: the share of anchors that have none.
    norm_mean, norm_std: length of the embeddings.
    effective_rank: how many directions the embeddings fill, between 1 (collapsed to a line) and min(B, d).
    """

    active_pairs: float
    anchors_without_positives: float
    norm_mean: float
    norm_std: float
    effective_rank: float

    def to_dict(self) -> dict[str, float]:
        """As a dictionary, for a log."""
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
    """Look at what a pair loss does on a batch, without changing anything.

    >>> from nearfar.losses import create
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]])
    >>> seen = diagnose(create("contrastive"), x, torch.tensor([0, 0, 1, 2]))
    >>> seen.active_pairs, seen.anchors_without_positives  # one of six pairs moves, two of four anchors are alone
    (0.16666666666666666, 0.5)
    """
    seen = activity(
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
        active_pairs=seen[0],
        anchors_without_positives=seen[1],
        norm_mean=float(norms.mean()),
        norm_std=float(norms.std(correction=0)),
        effective_rank=effective_rank(embeddings),
    )


def activity(
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
    """Shares of active pairs and of anchors without positives, as in `Diagnosis`; costs about what the loss does."""
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
    moved = (gradient[: len(valid)] != 0) & valid  # the angular loss has rows for its references below
    active = int(torch.count_nonzero(moved)) / max(1, int(torch.count_nonzero(valid)))
    return active, 1 - int(torch.count_nonzero(pairs.same.any(1))) / len(valid)


def effective_rank(embeddings: Tensor) -> float:
    """exp of the entropy of the normalized singular values (Roy and Vetterli, EUSIPCO 2007); 0 for all-zero rows.

    >>> round(effective_rank(torch.eye(3)), 6), round(effective_rank(torch.ones(3, 3)), 3)
    (3.0, 1.0)
    """
    x = full_precision(embeddings.detach()).double()
    # singular values from the smaller Gram matrix, several times faster than a decomposition of x
    gram = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    s = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    if not s.sum() > 0:
        return 0.0
    p = s / s.sum()
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))
