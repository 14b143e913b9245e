"""Binomial deviance loss: a soft hinge on each side of a similarity threshold."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss, graded_mean
from nearfar.ops.pairs import Pairs, softplus
from nearfar.validation import check_positive


def binomial(sim: Tensor, same: Tensor, scale_pos: float, scale_neg: float, threshold: float) -> Tensor:
    """Compute the loss of every pair with similarity S and threshold t, elementwise.

    The loss is (2/s) log(1 + e^{s (t - S)}) with s = scale_pos for positive pairs, and (2/s) log(1 + e^{s (S - t)})
    with s = scale_neg for all other pairs.
    """
    scale = torch.where(same, sim.new_full((), -scale_pos), sim.new_full((), scale_neg))
    return softplus((sim - threshold) * scale) * (2 / scale.abs())


@register("binomial")
class BinomialDevianceLoss(PairLoss):
    """Binomial deviance (Yi et al., 2014) as in the released code of DRO (arXiv 1912.11194), on cosines S.

    A positive pair contributes (2/scale_pos) log(1 + e^{-scale_pos (S - threshold)}), and a negative pair
    (2/scale_neg) log(1 + e^{scale_neg (S - threshold)}). The loss is the mean over all pairs, positive and negative
    together.

    The defaults and the factor 2/scale are from the released scripts for CUB. The paper does not state them.

    Args:
        scale_pos: Scale of the positives.
        scale_neg: Scale of the negatives.
        threshold: The similarity that separates positives from negatives.

    >>> BinomialDevianceLoss()(torch.eye(2), torch.tensor([0, 0]))  # log(1 + e)
    tensor(1.3133)
    """

    def __init__(self, *, scale_pos: float = 2.0, scale_neg: float = 40.0, threshold: float = 0.5) -> None:
        super().__init__()
        self.scale_pos = check_positive("scale_pos", scale_pos)
        self.scale_neg = check_positive("scale_neg", scale_neg)
        self.threshold = threshold

    def elementwise(self, pairs: Pairs) -> Tensor:
        """Compute the loss of every pair. The result has the shape of `pairs.sim`."""
        return binomial(pairs.sim, pairs.same, self.scale_pos, self.scale_neg, self.threshold)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return pairs.mean(self.elementwise(pairs))

    def graded_cost(self, pairs: Pairs, grade: Tensor) -> Tensor:
        """Compute the mean over pairs of grade * (loss as a positive) + (1 - grade) * (loss as a negative).

        The grade of a pair is between 0 (negative) and 1 (positive).
        """
        return graded_mean(pairs, grade, self.elementwise)
