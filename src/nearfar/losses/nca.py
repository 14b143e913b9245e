"""NCA: the probability that a sample picks one of its positives as its neighbor."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.geometry import cosine_matrix
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_positive


@register("nca")
class NCALoss(PairLoss):
    """Neighborhood component analysis (Goldberger et al., NeurIPS 2004), on unit vectors.

    The loss is the mean over anchors i with positives P_i of -log( sum_{p in P_i} e^{-scale D_ip^2} / sum_{j != i}
    e^{-scale D_ij^2} ), where D is the Euclidean distance. The paper maximizes the sum of the probabilities or of their
    logarithms; this is the second. It learns a linear map of data without normalization; unit vectors are our choice.
    An anchor without positives is left out. The weight of a sample multiplies its exponentials and, as an anchor, its
    term of the mean.

    Args:
        scale: The factor of the squared distances. The default is that of pytorch-metric-learning.

    >>> NCALoss()(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1])).exp()
    tensor(2.)
    """

    def __init__(self, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = check_positive("scale", scale)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return 2 * cosine_matrix(x, y) - 2  # -D^2 of unit vectors

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return nca(pairs, self.scale)


def nca(pairs: Pairs, scale: float) -> Tensor:
    """Compute the mean over anchors with positives of -log(sum_P e^{scale S} / sum_{P, N} e^{scale S})."""
    has = pairs.same.any(1)
    pos = pairs.log_sum_exp(scale * pairs.sim, pairs.same)
    every = pairs.log_sum_exp(scale * pairs.sim, pairs.same | pairs.diff)
    # Both logarithms are -inf for an anchor without pairs: remove them before the difference would be NaN.
    return pairs.anchor_mean(torch.where(has, every, 0.0) - torch.where(has, pos, 0.0), has)
