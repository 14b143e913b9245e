"""Circle loss: each similarity is weighted by its distance from the optimum."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs, softplus
from nearfar.validation import check_positive


@register("circle")
class CircleLoss(PairLoss):
    """Circle loss (Sun et al., CVPR 2020, arXiv 2002.10857, Eq. 6), on cosines S.

    The loss is the mean over the anchors i that have both positives and negatives of
    log(1 + sum_{N_i} e^{gamma a_n (S_n - m)} sum_{P_i} e^{-gamma a_p (S_p - (1 - m))}), where P_i and N_i are the
    positives p and negatives n of anchor i, and S_p and S_n are their cosines with the anchor. The factors
    a_n = [S_n + m]_+ and a_p = [1 + m - S_p]_+ are treated as constants in the gradient.

    Args:
        m: The margin. The default is the paper's value for fine-grained retrieval.
        gamma: The scale. The default is the paper's value for fine-grained retrieval.

    >>> import torch
    >>> CircleLoss()(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor(54.4000)
    """

    def __init__(self, *, m: float = 0.4, gamma: float = 80.0) -> None:
        super().__init__()
        self.m, self.gamma = m, check_positive("gamma", gamma)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        sim, fixed = pairs.sim, pairs.sim.detach()
        pos = pairs.log_sum_exp((1 + self.m - fixed).relu() * -self.gamma * (sim - (1 - self.m)), pairs.same)
        neg = pairs.log_sum_exp((fixed + self.m).relu() * self.gamma * (sim - self.m), pairs.diff)
        return pairs.anchor_mean(softplus(pos + neg), pairs.same.any(1) & pairs.diff.any(1))
