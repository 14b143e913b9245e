"""The base class of pair losses: it checks the inputs, arranges anchors and references, and creates their Pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearfar.losses.base import Loss, full_precision, label_tensors
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.validation import Labels, check_embeddings, check_labels, check_weights


@dataclass(frozen=True, eq=False)
class PairBatch:
    """The checked anchors and references of a call, in float32 or float64.

    Without `ref_emb`, the batch is compared with itself. `representatives` marks a PROFS batch whose anchors or
    references are representatives of their classes.
    """

    emb: Tensor
    labels: Tensor
    weights: Tensor | None = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    ref_weights: Tensor | None = None
    representatives: bool = False

    def select(self, index: slice | Tensor) -> PairBatch:
        """Return the anchors at these positions as a batch."""
        emb = self.emb[index] if isinstance(index, slice) else self.emb.index_select(0, index)
        return PairBatch(emb, self.labels[index], None if self.weights is None else self.weights[index])

    def against(self, references: PairBatch, *, representatives: bool = False) -> PairBatch:
        """Return a batch with these anchors and the anchors of `references` as references."""
        return replace(
            self,
            ref_emb=references.emb,
            ref_labels=references.labels,
            ref_weights=references.weights,
            representatives=representatives,
        )


class PairLoss(Loss):
    """Base class of losses over pairs of samples.

    A subclass implements `cost`, and overrides `similarity` if it does not use cosines.

    Set `loss.mine = f` to select pairs first. f is a function of `nearfar.mining`, or any function from Pairs to Pairs.
    """

    mine: Callable[[Pairs], Pairs] | None = None

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        """Compute the loss.

        Half precision is computed in float32, with or without autocast. A batch without pairs gives a differentiable 0.

        Args:
            embeddings: The embeddings of the anchors [B, d]. They need not be normalized.
            labels: Class ids or class names [B], or multi-hot [B, C]; two samples are positives if they share a label.
            ref_emb: Embeddings of references [R, d]. The pairs are then anchors x references and there are no self
                pairs. By default the references are the batch itself.
            ref_labels: The labels of the references.
            weights: Sample weights [B]. They multiply the terms of a sample's pairs and count in the normalizer; weight
                0 removes the sample.
            ref_weights: Sample weights of the references [R].
            representatives: The first n samples are class representatives, and only pairs with them count (PROFS).

        Returns:
            The loss, a scalar.
        """
        labels, ref_labels = self.label_tensors(labels, ref_labels, getattr(embeddings, "device", None))
        batch = make_batch(embeddings, labels, ref_emb, ref_labels, weights, ref_weights)
        if representatives is not None:
            check_representatives(representatives, batch)
        batch = self.arrange(batch, representatives)
        with torch.autocast(embeddings.device.type, enabled=False):
            pairs = self.pairs(batch)
            return self.cost(pairs if self.mine is None else self.mine(pairs), batch)

    def label_tensors(
        self, labels: Labels, ref_labels: Labels | None, device: torch.device | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the labels of anchors and references as tensors; see `nearfar.losses.base.label_tensors`."""
        return label_tensors(labels, ref_labels, device)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        """Compute the similarities [A, R] of anchors and references, larger is closer; cosines by default."""
        return cosine_matrix(x, y)

    def arrange(self, batch: PairBatch, representatives: int | None) -> PairBatch:
        """Choose anchors and references. By default, n representatives are compared with the other samples."""
        if representatives is None:
            return batch
        n = representatives
        return batch.select(slice(n)).against(batch.select(slice(n, None)), representatives=True)

    def pairs(self, batch: PairBatch) -> Pairs:
        """Create the Pairs of a batch. Samples of weight 0 are in no pair."""
        same, diff = pair_masks(batch.labels, batch.ref_labels)
        return with_weights(
            Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff, symmetric=batch.ref_emb is None),
            *pair_weights(batch),
        )

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        """Compute the loss of the pairs, a scalar."""
        raise NotImplementedError


def make_batch(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    weights: Tensor | None,
    ref_weights: Tensor | None,
) -> PairBatch:
    """Check the inputs of a pair loss and convert half precision to float32."""
    check_embeddings("embeddings", embeddings)
    check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
    if weights is not None:
        check_weights("weights", weights, rows=len(embeddings), rows_name="embeddings")
    if (ref_emb is None) != (ref_labels is None):
        present, missing = ("ref_labels", "ref_emb") if ref_emb is None else ("ref_emb", "ref_labels")
        raise ValueError(f"{present} was given without {missing}: pass both or neither")
    if ref_emb is None and ref_weights is not None:
        raise ValueError("ref_weights was given without ref_emb: without references, weights apply to both sides")
    if ref_emb is not None and ref_labels is not None:
        check_embeddings("ref_emb", ref_emb, dim=embeddings.shape[1])
        check_labels("ref_labels", ref_labels, rows=len(ref_emb), rows_name="ref_emb")
        if labels.shape[1:] != ref_labels.shape[1:]:
            raise ValueError(
                f"labels and ref_labels must both be [N] or both [N, C], "
                f"got {list(labels.shape)} and {list(ref_labels.shape)}"
            )
        if ref_weights is not None:
            check_weights("ref_weights", ref_weights, rows=len(ref_emb), rows_name="ref_emb")
    emb = full_precision(embeddings)
    return PairBatch(
        emb,
        labels,
        cast_weights("weights", weights, emb),
        None if ref_emb is None else ref_emb.to(emb.dtype),
        ref_labels,
        cast_weights("ref_weights", ref_weights, emb),
    )


def cast_weights(name: str, weights: Tensor | None, like: Tensor) -> Tensor | None:
    """Return detached weights in the dtype of the embeddings; weights that overflow it are an error."""
    if weights is None:
        return None
    cast = weights.detach().to(like.dtype)
    if cast.dtype != weights.dtype and not torch.compiler.is_compiling() and not torch.isfinite(cast).all():
        raise ValueError(f"{name} up to {float(weights.max())} overflow {like.dtype}: scale them down")
    return cast


def check_representatives(n: int, batch: PairBatch) -> None:
    """Check that the number of representatives is between 1 and B - 1 and that there are no references."""
    if batch.ref_emb is not None:
        raise ValueError(
            f"representatives={n} was given with ref_emb: representatives are samples of the batch, pass one of the two"
        )
    if isinstance(n, bool) or not isinstance(n, int) or not 0 < n < len(batch.emb):
        raise ValueError(
            f"representatives must be an integer from 1 to {len(batch.emb) - 1} (the batch size minus 1), got {n!r}"
        )


def pair_weights(batch: PairBatch) -> tuple[Tensor | None, Tensor | None]:
    """Return the weights of anchors and references, both or neither; missing weights on one side are ones."""
    if batch.ref_emb is None:
        return batch.weights, batch.weights
    if batch.weights is None and batch.ref_weights is None:
        return None, None
    anchors = batch.emb.new_ones(len(batch.emb)) if batch.weights is None else batch.weights
    return anchors, batch.emb.new_ones(len(batch.ref_emb)) if batch.ref_weights is None else batch.ref_weights


def with_weights(pairs: Pairs, weights: Tensor | None, ref_weights: Tensor | None) -> Pairs:
    """Return the pairs with sample weights; pairs of a sample of weight 0 leave both masks."""
    if weights is None or ref_weights is None:
        return pairs
    nonzero = (weights > 0)[:, None] & (ref_weights > 0)
    return replace(
        pairs, same=pairs.same & nonzero, diff=pairs.diff & nonzero, weights=weights, ref_weights=ref_weights
    )
