"""Measure what a loss does on a batch: for the log, for warnings, and to find out why training does not progress.

Losses do not collect these measurements themselves. They take time only if a function of this module is called.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from nearfar.losses.base import full_precision
from nearfar.losses.combined import CombinedLoss, losses_of
from nearfar.losses.pair_batch import PairBatch, check_representatives, make_batch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import unit

MAX_EMBEDDINGS = 64


@dataclass(frozen=True)
class Diagnosis:
    """Measurements of a batch.

    Attributes:
        active_pairs: Fraction of the pairs for which the loss has a nonzero gradient with respect to the similarity.
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
    """Measure what a pair loss does on a batch, without changing anything.

    The arguments after `loss` are those that you pass when you call the loss.

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
    active, valid, anchors, with_positives = _count_pairs(
        loss, make_batch(embeddings.detach(), labels, ref_emb, ref_labels, weights, ref_weights), representatives
    ).tolist()
    return active / max(1, valid), 1 - with_positives / anchors


def _count_pairs(loss: PairLoss, batch: PairBatch, representatives: int | None) -> Tensor:
    """Count the active pairs, all pairs, the anchors and the anchors with positives, without waiting for the GPU.

    Returns a tensor of shape [4].
    """
    if representatives is not None:
        check_representatives(representatives, batch)
    batch = loss.arrange(batch, representatives)
    with torch.enable_grad(), torch.autocast(batch.emb.device.type, enabled=False):
        pairs = loss.compare(batch)
        sim = pairs.sim.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss.cost(replace(pairs, sim=sim), batch), sim)
    valid = pairs.same | pairs.diff
    active = (gradient[: len(valid)] != 0) & valid  # the angular loss has extra rows of similarities
    counts = [torch.count_nonzero(x) for x in (active, valid, pairs.same.any(1))]
    return torch.stack([counts[0], counts[1], torch.full_like(counts[0], len(valid)), counts[2]])


def effective_rank(embeddings: Tensor) -> float:
    """Compute the effective rank of embeddings (Roy and Vetterli, EUSIPCO 2007).

    This is the exponential of the entropy of the normalized singular values, or 0 if all embeddings are zero.

    >>> round(effective_rank(torch.eye(3)), 6), round(effective_rank(torch.ones(3, 3)), 3)
    (3.0, 1.0)
    """
    x = full_precision(embeddings.detach()).cpu().double()
    # eigenvalues of the smaller Gram matrix give the singular values several times faster than an SVD of x
    gram = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    s = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    if not s.sum() > 0:
        return 0.0
    p = s / s.sum()
    return float(torch.exp(-torch.special.xlogy(p, p).sum()))


def batch_statistics(
    loss: nn.Module,
    embeddings: Tensor,
    labels: Tensor,
    *,
    weights: Tensor | None,
    representatives: int | None,
    loss_sum: Tensor | None = None,
) -> dict[str, float]:
    """Compute statistics of a training batch for the log. They are copied from the device to the host in one transfer.

    Args:
        loss: The loss.
        embeddings: The embeddings of the batch [B, d].
        labels: Their labels.
        weights: Their sample weights.
        representatives: The number of class representatives at the start of a PROFS batch, or None.
        loss_sum: A tensor of shape [2] with the sum of the losses of several steps and the number of these steps. For a
            `CombinedLoss` of n losses, it also has the sums of the single losses, [2 + n].

    Returns:
        Three statistics of the first 64 embeddings: `norm`, their mean norm; `spread`, 1 minus the norm of the mean
        unit vector, which is 0 if all embeddings have the same direction; and `rank`, the effective rank of the unit
        vectors. For pair losses, the result also contains `active_pairs` and `without_positives` of the whole batch
        (see `Diagnosis`). With `loss_sum`, it also contains `loss`, the mean loss of these steps. For a `CombinedLoss`,
        it also contains `loss/NAME`, the mean of each single loss, and `active_pairs` is that of the first pair loss.
    """
    some = embeddings[:MAX_EMBEDDINGS].float()
    parts = {"some": some}
    if loss_sum is not None:
        parts["loss_sum"] = loss_sum
    pair_loss = next((part for part in losses_of(loss) if isinstance(part, PairLoss)), None)
    if pair_loss is not None:
        batch = make_batch(embeddings.detach(), labels, None, None, weights, None)
        parts["counts"] = _count_pairs(pair_loss, batch, representatives)
    read = _read_together(parts)
    some = read["some"].view_as(some).float()
    directions = unit(some)
    statistics = {
        "norm": float(torch.linalg.vector_norm(some, dim=1).mean()),
        "spread": 1 - float(torch.linalg.vector_norm(directions.mean(0))),
        "rank": effective_rank(directions),
    }
    if "counts" in read:
        active, valid, anchors, with_positives = read["counts"].tolist()
        statistics["active_pairs"] = active / max(1, valid)
        statistics["without_positives"] = 1 - with_positives / anchors
    if "loss_sum" in read:
        total, count, *others = read["loss_sum"].tolist()
        statistics["loss"] = total / count
        if isinstance(loss, CombinedLoss):
            statistics |= {f"loss/{name}": value / count for name, value in zip(loss.names, others, strict=True)}
    return statistics


def _read_together(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the host in one transfer. Return them flattened, in float64, which holds all values exactly."""
    # Counts can exceed the integers that float32 represents exactly, so all numbers are copied as bytes.
    flat = [part.reshape(-1).contiguous().view(torch.uint8) for part in parts.values()]
    copied = torch.split(torch.cat(flat).cpu(), [len(part) for part in flat])
    return {
        name: data.clone().view(part.dtype).double() for data, (name, part) in zip(copied, parts.items(), strict=True)
    }


def batch_warnings(statistics: dict[str, float], *, dim: int, batch_size: int) -> dict[str, str]:
    """Return warnings about a batch: a dict that maps the kind of a problem to a message with advice.

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
