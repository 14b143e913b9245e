"""What all pair losses share: checking what arrives, laying out anchors and references, and making their Pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nearfar.losses.base import Loss, full_precision
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.validation import check_embeddings, check_labels, check_weights


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Anchors and references of one call, checked, in float32 or float64. `ref_emb` None: the batch against itself."""

    emb: Tensor
    labels: Tensor
    weights: Tensor | None = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    ref_weights: Tensor | None = None
    representatives: bool = False

    def rows(self, which: slice | Tensor) -> PairBatch:
        """Some of the rows as a batch of their own."""
        emb = self.emb[which] if isinstance(which, slice) else self.emb.index_select(0, which)
        return PairBatch(emb, self.labels[which], None if self.weights is None else self.weights[which])

    def against(self, references: PairBatch, *, representatives: bool = False) -> PairBatch:
        """These rows as anchors, those as references."""
        return replace(
            self,
            ref_emb=references.emb,
            ref_labels=references.labels,
            ref_weights=references.weights,
            representatives=representatives,
        )


class PairLoss(Loss):
    """A loss over pairs of samples; a subclass says what the pairs cost, and where it differs, how near two rows are.

    Called as `loss(embeddings [B, d], labels, ref_emb=, ref_labels=, weights=, ref_weights=, representatives=)`; all
    but the first two are keyword-only. Labels are integers [B] or multi-hot [B, C] (the same kind = at least one
    label in common).
    With `ref_emb` the pairs are anchors x references and nothing is a self pair; without it the references are the
    batch. `weights` multiply a pair's term by the product of its samples' and count in the normalizer; weight 0 is
    removal. `representatives=n` (PROFS): the first n rows are class representatives and only pairs with them count.
    A batch with nothing to compare gives 0 with a graph. Half precision is computed in float32, autocast or not.

    `loss.mine = f` lets a function of `nearfar.mining`, or your own from Pairs to Pairs, choose among the pairs first.
    """

    mine: Callable[[Pairs], Pairs] | None = None

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        batch = make_batch(embeddings, labels, ref_emb, ref_labels, weights, ref_weights)
        if representatives is not None:
            check_representatives(representatives, batch)
        batch = self.arrange(batch, representatives)
        with torch.autocast(embeddings.device.type, enabled=False):
            pairs = self.pairs(batch)
            return self.cost(pairs if self.mine is None else self.mine(pairs), batch)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        """The matrix of this loss, larger is nearer: cosines unless a subclass says otherwise."""
        return cosine_matrix(x, y)

    def arrange(self, batch: PairBatch, representatives: int | None) -> PairBatch:
        """Who is anchor and who reference: as they came, and with n representatives, these against the other rows."""
        if representatives is None:
            return batch
        n = representatives
        return batch.rows(slice(n)).against(batch.rows(slice(n, None)), representatives=True)

    def pairs(self, batch: PairBatch) -> Pairs:
        """The Pairs of a batch; samples of weight 0 are in no pair."""
        same, diff = pair_masks(batch.labels, batch.ref_labels)
        return with_weights(
            Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff, symmetric=batch.ref_emb is None),
            *pair_weights(batch),
        )

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        """The value of the loss."""
        raise NotImplementedError


def make_batch(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    weights: Tensor | None,
    ref_weights: Tensor | None,
) -> PairBatch:
    """Check everything that arrives at a pair loss, and raise half precision to float32."""
    check_embeddings("embeddings", embeddings)
    check_labels("labels", labels, rows=len(embeddings), rows_name="embeddings")
    if weights is not None:
        check_weights("weights", weights, rows=len(embeddings), rows_name="embeddings")
    if (ref_emb is None) != (ref_labels is None):
        given, missing = ("ref_labels", "ref_emb") if ref_emb is None else ("ref_emb", "ref_labels")
        raise ValueError(f"{given} was given without {missing}: pass both or neither")
    if ref_emb is None and ref_weights is not None:
        raise ValueError("ref_weights was given without ref_emb: without references, weights serve both sides")
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
    """Weights as constants in the dtype of the embeddings, which must have room for them."""
    if weights is None:
        return None
    cast = weights.detach().to(like.dtype)
    if cast.dtype != weights.dtype and not torch.compiler.is_compiling() and not torch.isfinite(cast).all():
        raise ValueError(f"{name} up to {float(weights.max())} do not fit {like.dtype}: scale them down")
    return cast


def check_representatives(n: int, batch: PairBatch) -> None:
    """Between 1 and B - 1, and not together with references."""
    if batch.ref_emb is not None:
        raise ValueError(
            f"representatives={n} was given with ref_emb: representatives are rows of the batch; pass one of them"
        )
    if isinstance(n, bool) or not isinstance(n, int) or not 0 < n < len(batch.emb):
        raise ValueError(
            f"representatives must be a whole number from 1 to {len(batch.emb) - 1} (rows of embeddings - 1), got {n!r}"
        )


def pair_weights(batch: PairBatch) -> tuple[Tensor | None, Tensor | None]:
    """Weights of anchors and references: both or neither; a side without weights counts once each."""
    if batch.ref_emb is None:
        return batch.weights, batch.weights
    if batch.weights is None and batch.ref_weights is None:
        return None, None
    anchors = batch.emb.new_ones(len(batch.emb)) if batch.weights is None else batch.weights
    return anchors, batch.emb.new_ones(len(batch.ref_emb)) if batch.ref_weights is None else batch.ref_weights


def with_weights(pairs: Pairs, weights: Tensor | None, ref_weights: Tensor | None) -> Pairs:
    """Pairs with these sample weights; pairs of a sample of weight 0 leave both masks."""
    if weights is None or ref_weights is None:
        return pairs
    alive = (weights > 0)[:, None] & (ref_weights > 0)
    return replace(pairs, same=pairs.same & alive, diff=pairs.diff & alive, weights=weights, ref_weights=ref_weights)
