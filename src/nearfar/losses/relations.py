"""Pair losses that take relations between samples instead of labels, for data without classes."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import Loss
from nearfar.losses.pair_loss import GRADED_LOSSES, PairLoss
from nearfar.ops.relations import PairList, relation_of_pairs

__all__ = ["RelationLoss", "relation_of_pairs"]


class RelationLoss(Loss):
    """Compute a pair loss from a matrix of relations in place of labels.

    A relation is 1 for a positive pair, 0 for a negative pair, and NaN for an unknown pair. Unknown pairs have no
    effect. If the relations are derived from class labels, the result equals that of `loss` with these labels.

    Args:
        loss: A pair loss. If it has a miner, the miner is applied. These losses need classes and raise a ValueError:
            `margin` with `classes`, `n-pair` without `all_pairs`, `angular` with batch="n-pair", and `hap` with
            `levels`.
        graded: If True, relations may be grades between 0 and 1. Only five losses support grades. `binomial`,
            `contrastive` with form="squared", and `pair-margin` compute grade * (loss as a positive) +
            (1 - grade) * (loss as a negative) for each pair. `supcon` uses the grades as targets of its softmax. `hap`
            computes its relevances from them, and accepts grades even if `graded` is False. graded=True cannot be
            combined with a miner.

    >>> import torch
    >>> from nearfar.losses import create
    >>> loss, x = create("supcon"), torch.randn(3, 4)
    >>> relation = relation_of_pairs([0, 1], [1, 2], [1, -1], 3)  # (0, 1) is positive, (1, 2) is negative
    >>> relation
    tensor([[nan, 1., nan],
            [1., nan, 0.],
            [nan, 0., nan]])
    >>> RelationLoss(loss)(x, relation).shape
    torch.Size([])
    """

    def __init__(self, loss: PairLoss, *, graded: bool = False) -> None:
        super().__init__()
        if not isinstance(loss, PairLoss):
            raise ValueError(f"loss must be a pair loss, got {type(loss).__name__}: proxy losses need class labels")
        loss.check_relation(weighted=False)
        if graded and type(loss).graded_cost is PairLoss.graded_cost:
            raise ValueError(
                f"{type(loss).__name__} does not support grades between 0 and 1: use one of "
                f"{', '.join(GRADED_LOSSES)}, or round the relations to 0 and 1"
            )
        if graded and loss.mine is not None:
            raise ValueError("graded=True cannot be combined with a miner: create the loss without mine")
        self.loss, self.graded = loss, graded

    def forward(
        self,
        embeddings: Tensor,
        relation: Tensor | PairList,
        *,
        ref_emb: Tensor | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss, a scalar.

        Args:
            embeddings: The embeddings of the anchors [B, d].
            relation: The relations [B, R], boolean or numbers with the values 0, 1 and NaN. With `graded`, values
                between 0 and 1 are allowed too. Without `ref_emb`, R is B, the diagonal is ignored, and if only one of
                (i, j) and (j, i) is known, it is used for both. Instead of a matrix, you can pass a list of pairs as a
                tuple (i, j, sign) of three sequences. `sign` is +1 for a positive pair and -1 for a negative pair, and
                pairs that are not listed are unknown.
            ref_emb: The embeddings [R, d] with which the anchors are compared. By default, these are the embeddings of
                the batch.
            weights: Sample weights [B].
            ref_weights: Sample weights of the samples in `ref_emb` [R].
        """
        graded = self.graded or self.loss.needs_grades
        return self.loss.relation_loss(embeddings, relation, ref_emb, weights, ref_weights, graded=graded)

    def aligned(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        *,
        anchor_ids: Tensor | None = None,
        positive_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of aligned pairs; see `PairLoss.pairs`."""
        return self.loss.pairs(anchors, positives, negatives, anchor_ids=anchor_ids, positive_ids=positive_ids)
