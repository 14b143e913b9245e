"""The inputs of a pair loss: checks, conversion to full precision, and sample weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearfar.host_reads import should_check_values
from nearfar.losses.base import full_precision
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_embeddings, check_labels, check_weights


@dataclass(frozen=True, eq=False)
class PairBatch:
    """The validated inputs of one call of a pair loss, in float32 or float64.

    `emb`, `labels` and `weights` belong to the anchors; `ref_emb`, `ref_labels` and `ref_weights` belong to the
    references, the samples that the anchors are compared with. If `ref_emb` is None, the anchors are also the
    references. `representatives` is True if either the anchors or the references are class representatives from the
    PROFS sampler (see `nearfar.samplers.Profs`). `aligned` is True if anchor i and reference i form the only positive
    pair of both, for every i.
    """

    emb: Tensor
    labels: Tensor
    weights: Tensor | None = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    ref_weights: Tensor | None = None
    representatives: bool = False
    aligned: bool = False

    def select(self, index: slice | Tensor) -> PairBatch:
        """Return a batch with only the anchors at these positions, and without references."""
        if isinstance(index, slice):
            return PairBatch(self.emb[index], self.labels[index], None if self.weights is None else self.weights[index])
        weights = None if self.weights is None else self.weights.index_select(0, index)
        return PairBatch(self.emb.index_select(0, index), self.labels.index_select(0, index), weights)

    def halves(self) -> tuple[PairBatch, PairBatch]:
        """Return a batch with the first half of the anchors and one with the second half, both without references.

        One selection of 2n samples that is halved needs fewer operations in the backward pass than two selections.
        """
        weights = (None, None) if self.weights is None else self.weights.chunk(2)
        first, second = (
            PairBatch(*part) for part in zip(self.emb.chunk(2), self.labels.chunk(2), weights, strict=True)
        )
        return first, second

    def against(self, references: PairBatch, *, representatives: bool = False) -> PairBatch:
        """Return a batch with the anchors of this batch, and with the anchors of `references` as its references.

        `representatives` sets the attribute of the same name in the new batch.
        """
        return replace(
            self,
            ref_emb=references.emb,
            ref_labels=references.labels,
            ref_weights=references.weights,
            representatives=representatives,
        )


def make_batch(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    weights: Tensor | None,
    ref_weights: Tensor | None,
) -> PairBatch:
    """Check the inputs of a pair loss, and convert half-precision inputs to float32.

    Labels and weights are checked on their own device and then moved to the device of the embeddings.
    """
    check_embeddings("embeddings", embeddings)
    check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
    if weights is not None:
        check_weights("weights", weights, rows=len(embeddings), rows_name="embeddings")
    if (ref_emb is None) != (ref_labels is None):
        present, missing = ("ref_labels", "ref_emb") if ref_emb is None else ("ref_emb", "ref_labels")
        raise ValueError(f"{present} was given without {missing}: pass both or neither")
    if ref_emb is None and ref_weights is not None:
        raise ValueError("ref_weights was given without ref_emb: pass ref_emb too, or pass only weights")
    if ref_emb is not None and ref_labels is not None:
        check_embeddings("ref_emb", ref_emb, dim=embeddings.shape[1])
        check_labels("ref_labels", ref_labels, rows=len(ref_emb), rows_name="ref_emb")
        if labels.shape[1:] != ref_labels.shape[1:]:
            raise ValueError(
                f"labels and ref_labels must both have shape [N] or both [N, C], "
                f"got shapes {list(labels.shape)} and {list(ref_labels.shape)}"
            )
        if ref_weights is not None:
            check_weights("ref_weights", ref_weights, rows=len(ref_emb), rows_name="ref_emb")
    emb = full_precision(embeddings)
    return PairBatch(
        emb,
        labels.to(emb.device, non_blocking=True),
        cast_weights("weights", weights, emb),
        None if ref_emb is None else ref_emb.to(emb.dtype),
        None if ref_labels is None else ref_labels.to(emb.device, non_blocking=True),
        cast_weights("ref_weights", ref_weights, emb),
    )


def cast_weights(name: str, weights: Tensor | None, like: Tensor) -> Tensor | None:
    """Detach the weights and convert them to the dtype and device of `like`. Raise an error if a weight overflows."""
    if weights is None:
        return None
    cast = weights.detach().to(like.dtype)  # check before the move: reading CPU values does not wait for a GPU
    if cast.dtype != weights.dtype and should_check_values(cast) and not torch.isfinite(cast).all():
        raise ValueError(f"{name} has values up to {float(weights.max())}, too large for {like.dtype}: scale them down")
    return cast.to(like.device, non_blocking=True)


def check_representatives(n: int, batch: PairBatch) -> None:
    """Check the argument `representatives` of a pair loss, for a batch of B samples.

    n is the number of class representatives at the start of a batch from the PROFS sampler (`nearfar.samplers.Profs`).
    It must be an integer from 1 to B - 1, and the argument `ref_emb` must not be passed.
    """
    if batch.ref_emb is not None:
        raise ValueError(
            f"representatives={n} cannot be combined with ref_emb, because representatives are samples of the batch: "
            "pass only one of them"
        )
    if isinstance(n, bool) or not isinstance(n, int) or not 0 < n < len(batch.emb):
        raise ValueError(
            f"representatives must be an integer from 1 to {len(batch.emb) - 1} (the batch size minus 1), got {n!r}"
        )


def pair_weights(batch: PairBatch) -> tuple[Tensor | None, Tensor | None]:
    """Return the weights of the anchors, and of the references, the samples that the anchors are compared with.

    Both are None if neither has weights. If only one of them has weights, the weights of the other are 1.
    """
    if batch.ref_emb is None:
        return batch.weights, batch.weights
    if batch.weights is None and batch.ref_weights is None:
        return None, None
    anchors = batch.emb.new_ones(len(batch.emb)) if batch.weights is None else batch.weights
    return anchors, batch.emb.new_ones(len(batch.ref_emb)) if batch.ref_weights is None else batch.ref_weights


def with_weights(pairs: Pairs, weights: Tensor | None, ref_weights: Tensor | None) -> Pairs:
    """Return the pairs with these sample weights. Pairs in which a sample has weight 0 are removed from the masks."""
    if weights is None or ref_weights is None:
        return pairs
    nonzero = (weights > 0)[:, None] & (ref_weights > 0)
    return replace(
        pairs, same=pairs.same & nonzero, diff=pairs.diff & nonzero, weights=weights, ref_weights=ref_weights
    )
