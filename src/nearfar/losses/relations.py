"""Pair losses from relations between samples, for data without classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearfar.losses.angular import AngularLoss
from nearfar.losses.margin import MarginLoss
from nearfar.losses.multi_similarity import MultiSimilarityLoss
from nearfar.losses.n_pair import NPairsLoss
from nearfar.losses.pair_loss import PairBatch, PairLoss, make_batch, pair_weights, with_weights
from nearfar.ops.pairs import Pairs


class RelationLoss(nn.Module):
    """Compute a pair loss from a matrix of relations in place of labels.

    A relation is 1 for a positive pair, 0 for a negative pair, and NaN for a pair of which nothing is known. Unknown
    pairs are in neither mask, so they have no effect. If the relation is that of class labels, the value is that of the
    loss itself. Graded relations between 0 and 1 are refused, because no formula of a registered loss uses them.

    Args:
        loss: A pair loss, with its miner if it has one. Losses that need classes are refused: `margin` with `classes`,
            `n-pair` without `all_pairs`, and `angular` with batch="n-pair".

    >>> from nearfar.losses import create
    >>> loss, x = create("supcon"), torch.randn(3, 4)
    >>> relation = relation_of_pairs([0, 1], [1, 2], [1, -1], 3)  # 0 and 1 are the same, 1 and 2 are not
    >>> relation
    tensor([[nan, 1., nan],
            [1., nan, 0.],
            [nan, 0., nan]])
    >>> RelationLoss(loss)(x, relation).shape
    torch.Size([])
    """

    def __init__(self, loss: PairLoss) -> None:
        super().__init__()
        if not isinstance(loss, PairLoss):
            raise ValueError(f"loss must be a pair loss, got {type(loss).__name__}: proxy losses need class labels")
        for kind, needs_classes, cure in (
            (MarginLoss, getattr(loss, "classes", None) is not None, "create it without classes"),
            (NPairsLoss, not getattr(loss, "all_pairs", True), "create it with all_pairs=True"),
            (AngularLoss, getattr(loss, "batch", "full") != "full", "create it with batch='full'"),
        ):
            if isinstance(loss, kind) and needs_classes:
                raise ValueError(f"{loss} needs class labels: {cure}")
        self.loss = loss

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
            relation: The relations [B, R], boolean, or floating point with the values 0, 1 and NaN. Without references,
                R is B, the diagonal is ignored, and a relation that is given in one direction holds in both.
            ref_emb: Embeddings of references [R, d]. By default, the references are the batch itself.
            weights: Sample weights [B].
            ref_weights: Sample weights of the references [R].
        """
        if isinstance(self.loss, MultiSimilarityLoss) and self.loss.weighting == "outside" and weights is not None:
            raise ValueError("weights cannot be combined with weighting='outside' here: pass weighting='inside'")
        ids = torch.zeros(len(embeddings), dtype=torch.int64, device=embeddings.device)
        ref_ids = None if ref_emb is None else torch.zeros(len(ref_emb), dtype=torch.int64, device=ref_emb.device)
        batch = make_batch(embeddings, ids, ref_emb, ref_ids, weights, ref_weights)
        same, diff = relation_masks(relation.to(embeddings.device), batch)
        with torch.autocast(embeddings.device.type, enabled=False):
            pairs = with_weights(
                Pairs(self.loss.similarity(batch.emb, batch.ref_emb), same, diff, symmetric=batch.ref_emb is None),
                *pair_weights(batch),
            )
            return self.loss.cost(pairs if self.loss.mine is None else self.loss.mine(pairs), batch)

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

        The positives of the other anchors are negatives, and so are all `negatives`. If the same sample occurs in
        several pairs, pass the ids: a positive j of another anchor is then unknown, not negative, if its id is that of
        positive i or if the ids of anchors i and j are equal.

        Args:
            anchors: The embeddings of the anchors [B, d].
            positives: The embeddings of their positives [B, d].
            negatives: The embeddings of negatives of all anchors [N, d].
            anchor_ids: An integer for each anchor [B].
            positive_ids: An integer for each positive [B].
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


def relation_masks(relation: Tensor, batch: PairBatch) -> tuple[Tensor, Tensor]:
    """Return the masks (same, diff) of a matrix of relations. See `RelationLoss.forward`."""
    shape = len(batch.emb), len(batch.emb if batch.ref_emb is None else batch.ref_emb)
    if relation.shape != shape:
        raise ValueError(f"relation must have shape {list(shape)}, got {list(relation.shape)}")
    same, diff = (relation, ~relation) if relation.dtype == torch.bool else (relation == 1, relation == 0)
    if batch.ref_emb is None:
        same, diff = (same | same.T).fill_diagonal_(False), (diff | diff.T).fill_diagonal_(False)
    if not torch.compiler.is_compiling() and relation.device.type == "cpu":  # reading a value would stop a GPU
        if relation.is_floating_point() and not bool(((relation == 0) | (relation == 1) | relation.isnan()).all()):
            raise ValueError("relation must be 0, 1 or NaN: round graded relations, or set them to NaN")
        if bool((same & diff).any()):
            i, j = (same & diff).nonzero()[0].tolist()
            raise ValueError(f"relation[{i}, {j}] and relation[{j}, {i}] are 0 and 1: make them equal")
    return same, diff


def relation_of_pairs(
    first: Tensor | list[int],
    second: Tensor | list[int],
    sign: Tensor | list[int],
    rows: int,
    columns: int | None = None,
) -> Tensor:
    """Return the matrix of relations of a list of pairs: 1 where the sign is positive, 0 where it is not, else NaN.

    Args:
        first: The indices of the first samples.
        second: The indices of the second samples.
        sign: +1 for a positive and -1 or 0 for a negative pair.
        rows: The number of anchors.
        columns: The number of references. By default the references are the anchors, and the matrix is symmetric.
    """
    i, j, s = (torch.as_tensor(part) for part in (first, second, sign))
    relation = torch.full((rows, rows if columns is None else columns), torch.nan)
    relation[i, j] = (s > 0).float()
    if columns is None:
        relation[j, i] = (s > 0).float()
    return relation
