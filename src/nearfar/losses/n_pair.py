"""N-pair loss: softmax cross-entropy of each anchor's positive against the positives of other classes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nearfar.host_reads import is_on_host, should_check_values
from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import cosine_matrix, dot_matrix
from nearfar.ops.pairs import Pairs, ratio, row_count, softplus


def positives_against_negatives(pairs: Pairs, logits: Tensor) -> Tensor:
    """Compute the mean over positive pairs (i, p) of log(1 + sum_{n in N_i} e^{z_in - z_ip}), with logits z.

    N_i are the negatives of anchor i. z has the shape of `pairs.sim`, with one row per anchor.
    """
    negatives = pairs.log_sum_exp(logits, pairs.diff)
    return pairs.mean(softplus(negatives[:, None] - logits), pairs.same)


def examples_against_representatives(batch: PairBatch, n: int) -> PairBatch:
    """Return a batch in which the anchors are compared only with the class representatives (`nearfar.samplers.Profs`).

    The representatives are the first n samples of the batch. All other samples are the anchors.
    """
    return batch.select(slice(n, None)).against(batch.select(slice(n)), representatives=True)


def first_against_second(batch: PairBatch, *, cure: str) -> PairBatch:
    """Return a batch that compares the first sample of each class (anchors) with the second samples (references).

    Classes with one sample are left out, and anchor i and reference i belong to the same class. A class with more than
    two samples raises a ValueError. Where values are not checked (see `nearfar.host_reads`), its samples after the
    second are ignored instead. Samples of weight 0 are ignored.

    The number of anchors depends on the values of the labels. torch.compile does not support such shapes, and on a GPU
    the host would have to wait for the labels. In both cases, and if no class has a second sample, all samples are used
    as anchors and as references, and those that are not needed get weight 0. The value of the loss is the same.

    Args:
        batch: The batch.
        cure: Advice for the user, which is added to error messages.
    """
    if batch.labels.ndim != 1:
        raise ValueError(f"labels must be class ids of shape [N], got shape {list(batch.labels.shape)}: {cure}")
    if is_on_host(batch.labels):
        chosen = find_pairs(batch, cure=cure)
        if len(chosen):
            anchors, references = batch.select(chosen.to(batch.emb.device)).halves()
            return replace(anchors.against(references), aligned=True)
    earlier = (batch.labels[:, None] == batch.labels).tril_(-1)
    if batch.weights is None:
        place = row_count(earlier)  # 0 for the first sample of a class, 1 for the second
    else:
        there = batch.weights > 0
        place = torch.where(there, row_count(earlier & there), -1)
    if should_check_values(place) and int(place.max()) > 1:
        raise crowded_class(int(batch.labels[place > 1][0]), int(place.max()) + 1, cure)
    w = torch.ones_like(batch.emb[:, 0]) if batch.weights is None else batch.weights
    anchors, references = (replace(batch, weights=torch.where(place == k, w, 0.0)) for k in (0, 1))
    return anchors.against(references)


def find_pairs(batch: PairBatch, *, cure: str) -> Tensor:
    """Return the positions of the first samples of the classes with two samples, then of the second samples, [2n].

    The classes are in the order of their first samples. The labels must be on the CPU. Samples of weight 0 are ignored.
    A class with more than two samples raises a ValueError that ends with `cure`.
    """
    labels = batch.labels.numpy()
    order = labels.argsort(kind="stable")
    if batch.weights is not None:
        order = order[batch.weights.cpu().numpy()[order] > 0]
    ids = labels[order]
    repeats = ids[1:] == ids[:-1]
    crowded = repeats[1:] & repeats[:-1]
    if crowded.any():
        label = int(ids[crowded.argmax()])
        raise crowded_class(label, int((ids == label).sum()), cure)
    (at,) = repeats.nonzero()
    at = at[order[at].argsort()]
    return torch.from_numpy(order[np.concatenate([at, at + 1])])


def crowded_class(label: int, count: int, cure: str) -> ValueError:
    """Return the error for a class with more than two samples."""
    return ValueError(
        f"labels has {count} samples of class {label}, but at most 2 are allowed: sample two of each class, or {cure}"
    )


@register("n-pair")
class NPairsLoss(PairLoss):
    """N-pair loss (Sohn, NeurIPS 2016), on dot products of embeddings that are not normalized.

    The loss is the mean over positive pairs (i, p) of
    log(1 + sum_{n in N_i} e^{f_i.f_n - f_i.f_p}) + l2_reg/2 (||f_i||^2 + ||f_p||^2), where f are the embeddings and N_i
    are the negatives of anchor i.

    By default, the first sample of each class is an anchor and the second sample is its positive. The negatives are the
    second samples of the other classes. A class with more than two samples raises a ValueError. If `ref_emb` is passed,
    all samples of the batch are anchors, and their positives and negatives are samples in `ref_emb`. In a batch from
    the PROFS sampler (`nearfar.samplers.Profs`), the anchors are the samples that are not class representatives, and
    their positives and negatives are class representatives.

    Args:
        l2_reg: Weight of the squared norms. The default corresponds to that of TensorFlow's npairs_loss, which the
            PROFS paper uses.
        normalize: If True, use cosines instead of dot products.
        all_pairs: If True, use every ordered positive pair of the batch and all negatives. This option is our addition.

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
        return first_against_second(batch, cure="create the loss with all_pairs=True")

    def check_relation(self, *, weighted: bool) -> None:
        if not self.all_pairs:
            raise ValueError(
                f"relation cannot be used with {self}, which needs class labels: pass labels, or create the loss "
                "with all_pairs=True"
            )

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if batch.aligned and pairs.weights is None and self.mine is None:
            # every column is the positive or a negative of each anchor, so the loss is a cross-entropy
            value = cross_entropy(pairs.sim, torch.arange(len(pairs.sim), device=pairs.sim.device))
        else:
            value = positives_against_negatives(pairs, pairs.sim)
        if self.l2_reg:
            anchors = batch.emb.square().sum(1)
            references = anchors if batch.ref_emb is None else batch.ref_emb.square().sum(1)
            share = pairs.shares(pairs.same)
            value = value + self.l2_reg / 2 * ratio(share.sum(1) @ anchors + share.sum(0) @ references, share.sum())
        return value
