"""SNR loss: a contrastive loss on signal-to-noise ratio distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.contrastive import nonzero_hinges
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.geometry import dot_matrix, unit
from nearfar.ops.pairs import Pairs


def snr_distance(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Compute the SNR distances var(x_i - y_j) / var(x_i) of the vectors x [A, d] and y [R, d], a matrix [A, R].

    The variance is taken over the d features, and var(x - y) = var(x) + var(y) - 2 cov(x, y). By default y is x. The
    matrix is not symmetric, because only the variance of x is in the denominator. If all features of x_i are equal up
    to rounding, its variance is treated as 1.
    """
    power = x.detach().square().mean(1)
    x = x - x.mean(1, keepdim=True)
    y = None if y is None else y - y.mean(1, keepdim=True)
    x_var = x.square().mean(1)
    y_var = x_var if y is None else y.square().mean(1)
    noise = (x_var[:, None] + y_var - 2 / x.shape[1] * dot_matrix(x, y)).clamp_min(0)
    # Divide twice by the standard deviation instead of once by the variance: the gradient of 1 / variance overflows or
    # underflows much earlier if the norms of the vectors are very small or very large.
    deviation = torch.linalg.vector_norm(x, dim=1) / math.sqrt(x.shape[1])
    signal = torch.where(x_var > 4 * torch.finfo(x.dtype).eps ** 2 * power, deviation, 1.0)
    return noise * signal.reciprocal().square()[:, None]


@register("snr")
class SignalToNoiseRatioContrastiveLoss(PairLoss):
    """SNR contrastive loss (Yuan et al., CVPR 2019), on embeddings that are not normalized.

    The SNR distance of anchor h_i and sample h_j is d_ij = var(h_i - h_j) / var(h_i), where the variance is taken
    over the features. The loss is the mean of the non-zero positive terms [d - pos_margin]_+, plus the mean of the
    non-zero negative terms [neg_margin - d]_+, plus reg times the mean over anchors of |sum of the features of h_i|.

    The default margins are our choice. The BSPML paper (arXiv 2211.11751) states "positive margin 1, negative margin
    0", which makes sense only for a similarity, not for a distance.

    Args:
        pos_margin: Margin of the positives.
        neg_margin: Margin of the negatives.
        reg: Weight of the regularizer. The default 0, which turns it off, is our choice.
        normalize: Whether to scale the embeddings to unit length.

    >>> x = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    >>> SignalToNoiseRatioContrastiveLoss()(x, torch.tensor([0, 0]))  # var (2, -2) / var (1, -1)
    tensor(4.)
    """

    def __init__(
        self, *, pos_margin: float = 0.0, neg_margin: float = 1.0, reg: float = 0.0, normalize: bool = False
    ) -> None:
        super().__init__()
        self.pos_margin, self.neg_margin, self.reg, self.normalize = pos_margin, neg_margin, reg, normalize

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        if self.normalize:
            x, y = unit(x), None if y is None else unit(y)
        return -snr_distance(x, y)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        value = nonzero_hinges(pairs, -self.pos_margin, -self.neg_margin)
        if self.reg:
            rows = unit(batch.emb) if self.normalize else batch.emb
            value = value + self.reg * pairs.anchor_mean(rows.sum(1).abs())
        return value
