"""N-pair loss: a softmax of each anchor's positive against the positives of other classes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.geometry import cosine_matrix, dot_matrix
from nearfar.ops.pairs import Pairs, ratio, row_count, softplus


def positives_against_negatives(pairs: Pairs, logits: Tensor) -> Tensor:
    """Compute the mean over positive pairs (i, p) of log(1 + sum_{n in N_i} e^{z_in - z_ip})."""
    negatives = pairs.log_sum_exp(logits, pairs.diff)
    return pairs.mean(softplus(negatives[:, None] - logits), pairs.same)


def examples_against_representatives(batch: PairBatch, n: int) -> PairBatch:
    """Arrange a PROFS batch for N-pair losses: representatives are references, the other samples anchors."""
    return batch.select(slice(n, None)).against(batch.select(slice(n)), representatives=True)


def first_against_second(batch: PairBatch, *, cure: str) -> PairBatch:
    """Take the first sample of each class as anchor and the second as reference; a third sample is an error.

    The number of anchors depends on the labels. Under torch.compile, and if no class has a second sample, all samples
    stay on both sides and those that do not belong there get weight 0, which has the same value.

    Args:
        batch: The batch.
        cure: What the user can do about an error.
    """
    if batch.labels.ndim != 1:
        raise ValueError(f"labels must be class ids [N] for this loss, got shape {list(batch.labels.shape)}: {cure}")
    earlier = (batch.labels[:, None] == batch.labels).tril_(-1)
    if batch.weights is None:
        place = row_count(earlier)  # 0 first, 1 second
    else:
        there = batch.weights > 0
        place = torch.where(there, row_count(earlier & there), -1)
    if not torch.compiler.is_compiling():
        last = int(place.max())
        if last > 1:
            crowded = int(batch.labels[place > 1][0])
            raise ValueError(f"labels has {last + 1} samples of class {crowded}, but at most 2 are allowed: {cure}")
        if last == 1:
            first, second = ((place == k).nonzero().flatten() for k in (0, 1))
            return batch.select(first).against(batch.select(second))
    w = torch.ones_like(batch.emb[:, 0]) if batch.weights is None else batch.weights
    anchors, references = (replace(batch, weights=torch.where(place == k, w, 0.0)) for k in (0, 1))
    return anchors.against(references)


@register("n-pair")
class NPairsLoss(PairLoss):
    """N-pair loss (Sohn, NeurIPS 2016), on dot products of raw embeddings.

    Mean over positive pairs (i, p) of log(1 + sum_{n in N_i} e^{f_i.f_n - f_i.f_p}) + l2_reg/2 (||f_i||^2 + ||f_p||^2).

    If references are passed, they are the positives and negatives. Otherwise the first sample of a class is the anchor
    and the second its positive; a third sample is an error. With `representatives`, these are the references and the
    other samples the anchors (PROFS).

    Args:
        l2_reg: Weight of the norms; 0.001 is the default of TensorFlow's npairs_loss (in which PROFS is written), in
            this normalization.
        normalize: Use cosines instead of dot products.
        all_pairs: Use every ordered positive pair and all negatives (ours).

    >>> NPairsLoss(l2_reg=0)(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]))  # log 2
    tensor(0.6931)
    """

    def __init__(self, *, l2_reg: float = 0.001, normalize: bool = False, all_pairs: bool = False) -> None:
        super().__init__()
        if l2_reg < 0:
            raise ValueError(f"l2_reg must not be negative, got {l2_reg}")
        self.l2_reg, self.normalize, self.all_pairs = l2_reg, normalize, all_pairs

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return cosine_matrix(x, y) if self.normalize else dot_matrix(x, y)

    def arrange(self, batch: PairBatch, representatives: int | None) -> PairBatch:
        if representatives is not None:
            return examples_against_representatives(batch, representatives)
        if batch.ref_emb is not None or self.all_pairs:
            return batch
        return first_against_second(batch, cure="sample two of each class, or pass all_pairs=True")

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        value = positives_against_negatives(pairs, pairs.sim)
        if self.l2_reg:
            anchors = batch.emb.square().sum(1)
            references = anchors if batch.ref_emb is None else batch.ref_emb.square().sum(1)
            share = pairs.shares(pairs.same)
            value = value + self.l2_reg / 2 * ratio(share.sum(1) @ anchors + share.sum(0) @ references, share.sum())
        return value
