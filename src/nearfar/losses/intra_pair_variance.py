"""Intra-pair variance loss: penalize unusually dissimilar positive pairs and unusually similar negative pairs."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_not_negative


@register("intra-pair-variance")
class IntraPairVarianceLoss(PairLoss):
    """Intra-pair variance loss (Yu and Tao, ICCV 2019), on cosines S.

    The loss is the mean over positive pairs of [(1 - eps_pos) m_pos - S]_+^2 plus the mean over negative pairs of
    [S - (1 + eps_neg) m_neg]_+^2, where m_pos and m_neg are the mean cosines of the positive and of the negative pairs
    of the batch. Gradients flow through these means. The paper adds this loss to the tuplet margin loss.

    Args:
        eps_pos: The tolerance of positives. The default is that of pytorch-metric-learning.
        eps_neg: The tolerance of negatives. The default is that of pytorch-metric-learning.

    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> IntraPairVarianceLoss(eps_pos=0.5)(x, torch.tensor([0, 0, 0]))  # mean 1/3; two of three pairs have cosine 0
    tensor(0.0185)
    """

    def __init__(self, *, eps_pos: float = 0.01, eps_neg: float = 0.01) -> None:
        super().__init__()
        self.eps_pos = check_not_negative("eps_pos", eps_pos)
        self.eps_neg = check_not_negative("eps_neg", eps_neg)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        mean_pos, mean_neg = pairs.mean(pairs.sim, pairs.same), pairs.mean(pairs.sim, pairs.diff)
        pos = ((1 - self.eps_pos) * mean_pos - pairs.sim).relu().square()
        neg = (pairs.sim - (1 + self.eps_neg) * mean_neg).relu().square()
        return pairs.mean(pos, pairs.same) + pairs.mean(neg, pairs.diff)
