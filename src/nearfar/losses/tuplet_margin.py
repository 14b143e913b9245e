"""Tuplet margin loss: subtract a slack from the angle of each positive, and compare it with all negatives."""

from __future__ import annotations

import math

from torch import Tensor

from nearfar.losses.arcface import check_angle
from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import safe_sqrt
from nearfar.ops.pairs import Pairs, softplus
from nearfar.validation import check_positive


@register("tuplet-margin")
class TupletMarginLoss(PairLoss):
    """Tuplet margin loss (Yu and Tao, ICCV 2019), on cosines S.

    The loss is the mean over positive pairs (a, p) of
    log(1 + sum_{n in N_a} e^{scale (S_an - cos(theta_ap - angle))}) with theta_ap = arccos S_ap, where N_a are the
    negatives of anchor a. The loss does not pull a positive closer than the slack `angle`. A positive pair whose anchor
    has no negatives costs 0.

    Args:
        angle: The slack margin in degrees. The default is that of pytorch-metric-learning, 0.1 radians.
        scale: The scale of the cosines. The default is that of pytorch-metric-learning.

    >>> import torch
    >>> loss = TupletMarginLoss(angle=0.0, scale=1.0)
    >>> loss(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])).exp()  # 1 + e^-1
    tensor(1.3679)
    """

    def __init__(self, *, angle: float = 5.73, scale: float = 64.0) -> None:
        super().__init__()
        self.angle, self.scale = check_angle(angle), check_positive("scale", scale)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return pairs.mean(tuplet_costs(pairs, self.angle, self.scale), pairs.same)


def tuplet_costs(pairs: Pairs, angle: float, scale: float) -> Tensor:
    """Compute the cost of every pair as if it were positive. The result has the shape of `pairs.sim`.

    The margin m is subtracted from the angle theta = arccos S: cos(theta - m) = cos theta cos m + sin theta sin m. At
    theta = 0, where sin theta = sqrt(1 - S^2) is not differentiable, its gradient is set to 0.
    """
    m = math.radians(angle)
    relaxed = pairs.sim * math.cos(m) + safe_sqrt(1 - pairs.sim * pairs.sim) * math.sin(m)
    negatives = pairs.log_sum_exp(scale * pairs.sim, pairs.diff)
    return softplus(negatives[:, None] - scale * relaxed)
