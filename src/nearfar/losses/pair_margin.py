"""Pair margin loss: a hinge on each side of a similarity threshold."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.contrastive import hinges
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss, graded_mean
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_not_negative


@register("pair-margin")
class PairMarginLoss(PairLoss):
    """Margin pair loss of DRO (Qi et al., arXiv 1912.11194, Eq. 19), on cosines S.

    The loss is the mean over all pairs of [m + threshold - S]_+ for positives and [m + S - threshold]_+ for negatives.

    Args:
        m: The margin. The default is from the paper (section 4.2.1) and the released script.
        threshold: The similarity that separates positives from negatives (lambda in the paper). The default is from the
            paper (section 4.2.1) and the released script.

    >>> import torch
    >>> PairMarginLoss()(torch.eye(2), torch.tensor([0, 0]))
    tensor(0.7000)
    """

    def __init__(self, *, m: float = 0.2, threshold: float = 0.5) -> None:
        super().__init__()
        self.m, self.threshold = check_not_negative("m", m), threshold

    def elementwise(self, pairs: Pairs) -> Tensor:
        """Compute the loss of every pair. The result has the shape of `pairs.sim`."""
        return hinges(pairs.sim, pairs.same, self.threshold + self.m, self.threshold - self.m)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return pairs.mean(self.elementwise(pairs))

    def graded_cost(self, pairs: Pairs, grade: Tensor) -> Tensor:
        """Compute the mean over pairs of grade * (loss as a positive) + (1 - grade) * (loss as a negative).

        The grade of a pair is between 0 (negative) and 1 (positive).
        """
        return graded_mean(pairs, grade, self.elementwise)
