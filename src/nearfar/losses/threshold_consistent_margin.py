"""Threshold-consistent margin loss: fixed cosine margins for hard positives and hard negatives."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_not_negative


@register("threshold-consistent-margin")
class ThresholdConsistentMarginLoss(PairLoss):
    """Threshold-consistent margin loss (Zhang et al., ICLR 2024, arXiv 2307.04047), on cosines S.

    The loss is weight_pos times the mean of pos_margin - S over the positive pairs with S <= pos_margin, plus
    weight_neg times the mean of S - neg_margin over the negative pairs with S >= neg_margin. A mean over no pairs is 0.
    The paper adds this loss to another loss, so that one similarity threshold suits all classes.

    Args:
        pos_margin: The margin of the positives. The default is that of pytorch-metric-learning.
        neg_margin: The margin of the negatives. The default is that of pytorch-metric-learning.
        weight_pos: The weight of the positives.
        weight_neg: The weight of the negatives.

    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> ThresholdConsistentMarginLoss()(x, torch.tensor([0, 0, 1]))  # 0.9 - 0, and 1 - 0.5
    tensor(1.4000)
    """

    def __init__(
        self,
        *,
        pos_margin: float = 0.9,
        neg_margin: float = 0.5,
        weight_pos: float = 1.0,
        weight_neg: float = 1.0,
    ) -> None:
        super().__init__()
        self.pos_margin, self.neg_margin = pos_margin, neg_margin
        self.weight_pos = check_not_negative("weight_pos", weight_pos)
        self.weight_neg = check_not_negative("weight_neg", weight_neg)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        fixed = pairs.sim.detach()
        pos = pairs.mean(self.pos_margin - pairs.sim, pairs.same & (fixed <= self.pos_margin))
        neg = pairs.mean(pairs.sim - self.neg_margin, pairs.diff & (fixed >= self.neg_margin))
        return self.weight_pos * pos + self.weight_neg * neg
