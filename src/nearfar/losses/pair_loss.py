"""The base class of pair losses, which checks the inputs and computes the similarities and masks of the pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nearfar.losses.base import Loss, label_tensors
from nearfar.losses.pair_batch import PairBatch, check_representatives, make_batch, pair_weights, with_weights
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs, pair_masks
from nearfar.ops.precision import without_autocast
from nearfar.ops.relations import PairList, aligned_relation, relation_masks, relation_of_pairs
from nearfar.validation import Labels, check_embeddings

GRADED_LOSSES = ("binomial", "contrastive", "hap", "pair-margin", "supcon")  # losses that implement `graded_cost`


class PairLoss(Loss):
    """Base class of losses on pairs of samples.

    A subclass implements `cost`, and overrides `similarity` if it does not use cosines.

    Set `loss.mine = f` to compute the loss on selected pairs only. f is a function from `nearfar.mining`, or any
    function that takes Pairs and returns Pairs.
    """

    mine: Callable[[Pairs], Pairs] | None = None
    needs_grades = False  # True if `cost` reads grades from the labels, so that relations must be passed on as grades

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels | None = None,
        *,
        relation: Tensor | PairList | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
        representatives: int | None = None,
    ) -> Tensor:
        """Compute the loss.

        Half-precision embeddings are converted to float32, even under autocast. If the batch has no pairs, the loss is
        0 and backward() still works.

        Args:
            embeddings: The embeddings of the anchors [B, d]. They need not be normalized.
            labels: Class ids or class names [B], or multi-hot labels [B, C] for C classes. Two samples are a positive
                pair if they share a label. None if `relation` is given.
            relation: The relations [B, R] of anchors and references, in place of labels: 1 for a positive pair, 0 for a
                negative pair, NaN for an unknown pair, which has no effect. Some losses take grades between 0 and 1
                (see `nearfar.losses.RelationLoss`). Without `ref_emb`, R is B, the diagonal is ignored, and if only one
                of (i, j) and (j, i) is known, it is used for both. Instead of a matrix, you can pass a list of pairs as
                a tuple (i, j, sign) of three sequences. `sign` is +1 for a positive pair and -1 for a negative pair,
                and pairs that are not listed are unknown.
            ref_emb: Embeddings of references [R, d]. Every anchor is compared with every reference. By default, the
                samples of the batch are also the references, and no sample is compared with itself.
            ref_labels: The labels of the references, [R] or [R, C].
            weights: Sample weights [B]. They multiply every term of the loss in which the sample occurs, and means are
                divided by the sum of the weights. Weight 0 removes a sample.
            ref_weights: Sample weights of the references [R].
            representatives: The number n of class representatives in a batch from the PROFS sampler (see
                `nearfar.samplers.Profs`). The first n samples of the batch are the representatives, and only pairs that
                contain a representative are used.

        Returns:
            The loss, a scalar tensor.
        """
        if relation is not None:
            for name, value in (("labels", labels), ("ref_labels", ref_labels), ("representatives", representatives)):
                if value is not None:
                    raise ValueError(f"relation replaces labels and cannot be combined with {name}: remove {name}")
            return self.relation_loss(embeddings, relation, ref_emb, weights, ref_weights)
        if labels is None:
            raise ValueError("labels is missing: pass labels, or relation instead")
        labels, ref_labels = self.label_tensors(labels, ref_labels, getattr(embeddings, "device", None))
        batch = make_batch(embeddings, labels, ref_emb, ref_labels, weights, ref_weights)
        if representatives is not None:
            check_representatives(representatives, batch)
        batch = self.arrange(batch, representatives)
        with without_autocast(embeddings.device.type):
            return self.cost(self.select(self.compare(batch)), batch)

    def label_tensors(
        self, labels: Labels, ref_labels: Labels | None, device: torch.device | None
    ) -> tuple[Tensor, Tensor | None]:
        """Convert `labels` and `ref_labels` to tensors; see `nearfar.losses.base.label_tensors`."""
        return label_tensors(labels, ref_labels, device)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        """Compute the similarities [A, R] of A anchors x and R references y. Closer samples have larger values.

        Every anchor is compared with every reference. If y is None, the anchors are compared with each other. The
        default similarity is the cosine.
        """
        return cosine_matrix(x, y)

    def arrange(self, batch: PairBatch, representatives: int | None) -> PairBatch:
        """Choose the anchors and references from the batch.

        The references are the samples that the anchors are compared with. If `representatives` is None, the batch is
        returned unchanged. Otherwise the class representatives, the first samples of the batch, become the anchors, and
        the other samples become the references.
        """
        if representatives is None:
            return batch
        n = representatives
        return batch.select(slice(n)).against(batch.select(slice(n, None)), representatives=True)

    def compare(self, batch: PairBatch) -> Pairs:
        """Compute the similarities and masks of the pairs in a batch. Samples with weight 0 are in no pair."""
        same, diff = pair_masks(batch.labels, batch.ref_labels)
        return with_weights(
            Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff, symmetric=batch.ref_emb is None),
            *pair_weights(batch),
        )

    def select(self, pairs: Pairs) -> Pairs:
        """Return the pairs that the miner selects, or all pairs if there is no miner."""
        return pairs if self.mine is None else self.mine(pairs)

    def pairs(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        *,
        anchor_ids: Tensor | None = None,
        positive_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of aligned pairs: anchor i and positive i belong together. With nt-xent, this is InfoNCE.

        The positives of the other anchors are negatives, and so are all `negatives`. If the same sample can occur in
        several pairs, pass ids. If pairs i and j have the same anchor id or the same positive id, positive j is then
        neither a positive nor a negative of anchor i.

        Args:
            anchors: The embeddings of the anchors [B, d].
            positives: The embeddings of their positives [B, d].
            negatives: Embeddings [N, d] that are negatives of every anchor.
            anchor_ids: Integer ids of the anchors [B]. Equal ids mean the same sample.
            positive_ids: Integer ids of the positives [B]. Equal ids mean the same sample.
        """
        check_embeddings("anchors", anchors)
        check_embeddings("positives", positives)
        if negatives is not None:
            check_embeddings("negatives", negatives, dim=anchors.shape[1])
        if anchors.shape != positives.shape:
            raise ValueError(
                f"anchors and positives must have the same shape, got {list(anchors.shape)} and {list(positives.shape)}"
            )
        count = 0 if negatives is None else len(negatives)
        relation = aligned_relation(anchors, count, anchor_ids, positive_ids)
        refs = positives if negatives is None else torch.cat([positives, negatives])
        value: Tensor = self(anchors, relation=relation, ref_emb=refs)
        return value

    def relation_loss(
        self,
        embeddings: Tensor,
        relation: Tensor | PairList,
        ref_emb: Tensor | None,
        weights: Tensor | None,
        ref_weights: Tensor | None,
        *,
        graded: bool | None = None,
    ) -> Tensor:
        """Compute the loss from relations in place of labels. The arguments are those of `forward`.

        `graded` says whether grades between 0 and 1 are allowed. By default, grades are allowed if the loss supports
        them and has no miner, or if the loss needs them.
        """
        self.check_relation(weighted=weights is not None or ref_weights is not None)
        if graded is None:
            graded = self.needs_grades or (self.supports_grades and self.mine is None)
        check_embeddings("embeddings", embeddings)
        ref_ids = None if ref_emb is None else no_labels(ref_emb)
        batch = make_batch(embeddings, no_labels(embeddings), ref_emb, ref_ids, weights, ref_weights)
        rows, columns = len(batch.emb), None if ref_emb is None else len(ref_emb)
        if isinstance(relation, tuple):
            if len(relation) != 3:
                raise ValueError(
                    "relation must be a matrix or a tuple of three sequences (i, j, sign), got a tuple of length "
                    f"{len(relation)}"
                )
            relation = relation_of_pairs(*relation, rows, columns)
        if isinstance(relation, Tensor):
            relation = relation.to(embeddings.device)
        cure = f", or use one of {', '.join(GRADED_LOSSES)} without a miner"
        same, diff, grade = relation_masks(relation, rows, columns, graded=graded, dtype=batch.emb.dtype, cure=cure)
        with without_autocast(embeddings.device.type):
            pairs = with_weights(
                Pairs(self.similarity(batch.emb, batch.ref_emb), same, diff, symmetric=ref_emb is None),
                *pair_weights(batch),
            )
            pairs = self.select(pairs)
            return self.graded_cost(pairs, grade) if graded else self.cost(pairs, batch)

    def check_relation(self, *, weighted: bool) -> None:
        """Raise a ValueError if the loss, as configured, cannot be computed from relations in place of labels."""

    @property
    def supports_grades(self) -> bool:
        """Return whether the loss, as configured, takes grades between 0 and 1; see `graded_cost`."""
        return type(self).graded_cost is not PairLoss.graded_cost

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        """Compute the loss from the pairs. Return a scalar."""
        raise NotImplementedError

    def graded_cost(self, pairs: Pairs, grade: Tensor) -> Tensor:
        """Compute the loss of pairs that have grades between 0 (negative) and 1 (positive). Return a scalar.

        `pairs.same` is the mask of the pairs with a grade above 0. If all grades are 0 or 1, the result equals `cost`.
        Losses that do not support grades raise a ValueError.
        """
        raise ValueError(
            f"{type(self).__name__} does not support grades between 0 and 1: use one of {', '.join(GRADED_LOSSES)}"
        )


def graded_mean(pairs: Pairs, grade: Tensor, elementwise: Callable[[Pairs], Tensor]) -> Tensor:
    """Compute the mean over all pairs of grade * (loss as a positive) + (1 - grade) * (loss as a negative).

    The grade of a pair is between 0 (negative) and 1 (positive). `elementwise` computes the loss of every pair. It is
    called twice: with all pairs as positives, and with all pairs as negatives.
    """
    every = torch.ones_like(pairs.same)
    pos, neg = elementwise(replace(pairs, same=every)), elementwise(replace(pairs, same=~every))
    return pairs.mean(grade * pos + (1 - grade) * neg)


def no_labels(embeddings: Tensor) -> Tensor:
    """Return class id 0 for every sample, as a placeholder for labels if `relation` is passed instead of labels."""
    return torch.zeros(len(embeddings), dtype=torch.int64, device=embeddings.device)
