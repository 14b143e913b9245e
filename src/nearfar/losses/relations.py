"""Pair losses that take relations between samples instead of labels, for data without classes."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.angular import AngularLoss
from nearfar.losses.base import Loss
from nearfar.losses.hap import HAPLoss
from nearfar.losses.margin import MarginLoss
from nearfar.losses.multi_similarity import MultiSimilarityLoss
from nearfar.losses.n_pair import NPairsLoss
from nearfar.losses.pair_loss import GRADED_LOSSES, PairBatch, PairLoss, make_batch, pair_weights, with_weights
from nearfar.ops.pairs import Pairs
from nearfar.ops.precision import without_autocast


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
            uses them as relevances. Miners cannot be combined with grades.

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
        for kind, needs_classes, cure in (
            (MarginLoss, getattr(loss, "classes", None) is not None, "create it without classes"),
            (NPairsLoss, not getattr(loss, "all_pairs", True), "create it with all_pairs=True"),
            (AngularLoss, getattr(loss, "batch", "full") != "full", "create it with batch='full'"),
            (HAPLoss, getattr(loss, "levels", None) is not None, "create it without levels"),
        ):
            if isinstance(loss, kind) and needs_classes:
                raise ValueError(f"{loss} needs class labels: {cure}")
        if graded and type(loss).graded_cost is PairLoss.graded_cost:
            raise ValueError(
                f"{type(loss).__name__} does not support graded relations: use one of {', '.join(GRADED_LOSSES)}, "
                "or round the relations to 0 and 1"
            )
        if graded and loss.mine is not None:
            raise ValueError("graded=True cannot be combined with a miner: create the loss without mine")
        self.loss, self.graded = loss, graded

    def forward(
        self,
        embeddings: Tensor,
        relation: Tensor,
        *,
        ref_emb: Tensor | None = None,
        weights: Tensor | None = None,
        ref_weights: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss, a scalar.

        Args:
            embeddings: The embeddings of the anchors [B, d].
            relation: The relations [B, R], either boolean or floating point with the values 0, 1 and NaN. With
                `graded`, values between 0 and 1 are allowed too. Without references, R is B, the diagonal is ignored,
                and if only one of (i, j) and (j, i) is known, it is used for both.
            ref_emb: Embeddings of references [R, d]. By default, the references are the batch itself.
            weights: Sample weights [B].
            ref_weights: Sample weights of the references [R].
        """
        if isinstance(self.loss, MultiSimilarityLoss) and self.loss.weighting == "outside" and weights is not None:
            raise ValueError("weights need weighting='inside': create the loss without weighting='outside'")
        ids = torch.zeros(len(embeddings), dtype=torch.int64, device=embeddings.device)
        ref_ids = None if ref_emb is None else torch.zeros(len(ref_emb), dtype=torch.int64, device=ref_emb.device)
        batch = make_batch(embeddings, ids, ref_emb, ref_ids, weights, ref_weights)
        relation = relation.to(embeddings.device)
        same, diff, grade = relation_masks(relation, batch, graded=self.graded)
        with without_autocast(embeddings.device.type):
            pairs = with_weights(
                Pairs(self.loss.similarity(batch.emb, batch.ref_emb), same, diff, symmetric=batch.ref_emb is None),
                *pair_weights(batch),
            )
            if self.loss.mine is not None:
                pairs = self.loss.mine(pairs)
            if self.graded or isinstance(self.loss, HAPLoss):
                return self.loss.graded_cost(pairs, grade.to(pairs.sim.dtype))
            return self.loss.cost(pairs, batch)

    def aligned(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        *,
        anchor_ids: Tensor | None = None,
        positive_ids: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of aligned pairs: anchor i and positive i belong together, as in InfoNCE.

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
        if anchors.shape != positives.shape:
            raise ValueError(
                f"anchors and positives must have the same shape, got {list(anchors.shape)} and {list(positives.shape)}"
            )
        relation = torch.eye(len(anchors), dtype=anchors.dtype, device=anchors.device)
        for ids in (anchor_ids, positive_ids):
            if ids is not None:
                repeated = (ids[:, None] == ids).to(anchors.device)
                relation = torch.where(repeated & (relation == 0), torch.nan, relation)
        if negatives is None:
            return self.forward(anchors, relation, ref_emb=positives)
        relation = torch.cat([relation, relation.new_zeros(len(anchors), len(negatives))], 1)
        return self.forward(anchors, relation, ref_emb=torch.cat([positives, negatives]))


def relation_masks(relation: Tensor, batch: PairBatch, *, graded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Convert relations to the mask of positive pairs, the mask of negative pairs and the grades.

    All have the shape of `relation`. See `RelationLoss.forward` for the meaning of its values.
    """
    shape = len(batch.emb), len(batch.emb if batch.ref_emb is None else batch.ref_emb)
    if relation.shape != shape:
        raise ValueError(f"relation must have shape {list(shape)}, got {list(relation.shape)}")
    known = torch.ones_like(relation, dtype=torch.bool) if relation.dtype == torch.bool else ~relation.isnan()
    grade = torch.where(known, relation, 0).to(batch.emb.dtype)
    if batch.ref_emb is None:  # if only one of (i, j) and (j, i) is known, use it for both
        is_conflict = known & known.T & (grade != grade.T)
        grade, known = torch.where(known, grade, grade.T), (known | known.T).fill_diagonal_(False)
    else:
        is_conflict = torch.zeros_like(known)
    # On a GPU, values are not checked, because the host would have to wait for them.
    if not torch.compiler.is_compiling() and relation.device.type == "cpu":
        if graded and not bool(((grade >= 0) & (grade <= 1)).all()):
            raise ValueError("relation must be between 0 and 1, or NaN for unknown pairs: scale the relations")
        if not graded and not bool(((grade == 0) | (grade == 1)).all()):
            raise ValueError(
                "relation must be 0, 1 or NaN: round graded relations, or pass graded=True to RelationLoss"
            )
        if bool(is_conflict.any()):
            i, j = is_conflict.nonzero()[0].tolist()
            raise ValueError(f"relation[{i}, {j}] and relation[{j}, {i}] differ: make them equal")
    return known & (grade > 0), known & (grade == 0), grade


def relation_of_pairs(
    first: Tensor | list[int],
    second: Tensor | list[int],
    sign: Tensor | list[int],
    rows: int,
    columns: int | None = None,
) -> Tensor:
    """Return the relation matrix of a list of pairs: 1 for positive pairs, 0 for negative pairs, NaN for all others.

    Args:
        first: The indices of the first samples.
        second: The indices of the second samples.
        sign: +1 for a positive pair, -1 or 0 for a negative pair.
        rows: The number of anchors.
        columns: The number of references. By default the references are the anchors, and the matrix is symmetric.
    """
    i, j, s = (torch.as_tensor(part) for part in (first, second, sign))
    relation = torch.full((rows, rows if columns is None else columns), torch.nan)
    relation[i, j] = (s > 0).float()
    if columns is None:
        relation[j, i] = (s > 0).float()
    return relation
