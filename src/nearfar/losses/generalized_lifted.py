"""Generalized lifted structure loss: soft maximum of the distances to positives, soft minimum of those to negatives."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.lifted import or_zero
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import negative_distance_matrix
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_not_negative, check_positive


@register("generalized-lifted")
class GeneralizedLiftedStructureLoss(PairLoss):
    """Generalized lifted structure loss (Hermans et al., arXiv 1703.07737), on distances D of unit vectors.

    The loss is the mean over anchors of [ log sum_{p in P} e^{scale (D - pos_margin)} + log sum_{n in N} e^{scale
    (neg_margin - D)} ]_+, where P and N are the positives and negatives of the anchor. A logarithm is replaced by 0 if
    its sum is empty, as in pytorch-metric-learning. The paper sums over the anchors. It does not normalize embeddings
    and has no scale; on unit vectors, all distances are at most 2, and a larger scale emphasizes the farthest positives
    and the closest negatives.

    Args:
        neg_margin: The margin of the negatives.
        pos_margin: The margin of the positives; the paper has only one margin. For anchors that have both positives
            and negatives, only the difference between the two margins matters.
        scale: The factor of the distances and margins. The default is that of pytorch-metric-learning.

    >>> import torch
    >>> GeneralizedLiftedStructureLoss()(torch.eye(3), torch.tensor([0, 0, 1]))  # 1, 1 and 1 + log(2) - sqrt(2)
    tensor(0.7596)
    """

    def __init__(self, *, neg_margin: float = 1.0, pos_margin: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.neg_margin = check_not_negative("neg_margin", neg_margin)
        self.pos_margin = check_not_negative("pos_margin", pos_margin)
        self.scale = check_positive("scale", scale)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return negative_distance_matrix(x, y)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return pairs.anchor_mean(anchor_costs(pairs, self.pos_margin, self.neg_margin, self.scale))


def anchor_costs(pairs: Pairs, pos_margin: float, neg_margin: float, scale: float = 1.0) -> Tensor:
    """Compute the loss of every anchor, [A]. `pairs.sim` holds the negated distances -D."""
    # The margins are the same for all pairs, so they are added to the logarithms instead of to every pair.
    pos = or_zero(pairs.log_sum_exp(-scale * pairs.sim, pairs.same) - scale * pos_margin)
    neg = or_zero(pairs.log_sum_exp(scale * pairs.sim, pairs.diff) + scale * neg_margin)
    return (pos + neg).relu()
