"""Signal-to-noise ratio contrastive loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.contrastive import hinges, nonzero_means
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.geometry import dot_matrix, unit
from nearfar.ops.pairs import Pairs


def snr_distance(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Compute var(x_i - y_j) / var(x_i) over the features, [A, R], by one matrix product.

    var(x - y) = var x + var y - 2 cov. The anchor is the signal, so the matrix is not symmetric. A constant vector has
    no signal (its variance is rounding error); its distances are the variances of the differences.
    """
    power = x.detach().square().mean(1)
    x = x - x.mean(1, keepdim=True)
    y = None if y is None else y - y.mean(1, keepdim=True)
    x_var = x.square().mean(1)
    y_var = x_var if y is None else y.square().mean(1)
    noise = (x_var[:, None] + y_var - 2 / x.shape[1] * dot_matrix(x, y)).clamp_min(0)
    # The gradient of the deviation has room for vectors of very different norms, that of the variance does not.
    deviation = torch.linalg.vector_norm(x, dim=1) / math.sqrt(x.shape[1])
    signal = torch.where(x_var > 4 * torch.finfo(x.dtype).eps ** 2 * power, deviation, 1.0)
    return noise * signal.reciprocal().square()[:, None]


@register("snr")
class SignalToNoiseRatioContrastiveLoss(PairLoss):
    """SNR contrastive loss (Yuan et al., CVPR 2019), on raw embeddings.

    With d_ij = var(h_i - h_j) / var(h_i) over the features: mean of the non-zero positive terms [d - pos_margin]_+ plus
    mean of the non-zero negative terms [neg_margin - d]_+ plus reg x mean_i |sum of the features of h_i|.

    The margins 0 and 1 are ours: BSPML prints "positive margin 1, negative margin 0", which only makes sense for a
    similarity.

    Args:
        pos_margin: Margin of the positives.
        neg_margin: Margin of the negatives.
        reg: Weight of the regularizer; 0 (ours) turns it off.
        normalize: Use unit vectors.

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
        value = nonzero_means(pairs, hinges(pairs.sim, pairs.same, -self.pos_margin, -self.neg_margin))
        if self.reg:
            rows = unit(batch.emb) if self.normalize else batch.emb
            value = value + self.reg * pairs.anchor_mean(rows.sum(1).abs())
        return value
