"""SupCon: softmax cross-entropy of each positive against all other samples."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs, ratio
from nearfar.validation import check_positive


@register("supcon")
class SupConLoss(PairLoss):
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020, arXiv 2004.11362, Eq. 2, "out"), on cosines S.

    The loss is the mean over anchors i with positives P_i of
    mean_{p in P_i} -log( e^{S_ip/T} / sum_{j != i} e^{S_ij/T} ).

    We take the mean over the anchors with positives, while Eq. 2 sums over all anchors. We also leave out the factor
    temperature / base_temperature of the released code.

    Args:
        temperature: The temperature T. The default is from the paper.

    >>> import torch
    >>> SupConLoss()(torch.eye(3), torch.tensor([0, 0, 1]))
    tensor(0.6931)
    """

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        logits = pairs.sim / self.temperature
        everything = pairs.log_sum_exp(logits, pairs.same | pairs.diff)
        return pairs.anchor_mean(everything - pairs.row_mean(logits, pairs.same), pairs.same.any(1))

    def graded_cost(self, pairs: Pairs, grade: Tensor) -> Tensor:
        """Compute the softmax cross-entropy. The targets of an anchor are its grades, divided by their sum.

        The grade of a pair is between 0 (negative) and 1 (positive).
        """
        logits = pairs.sim / self.temperature
        everything = pairs.log_sum_exp(logits, pairs.same | pairs.diff)
        mean = ratio(pairs.row_sum(grade * logits, pairs.same), pairs.row_sum(grade, pairs.same))
        return pairs.anchor_mean(everything - mean, pairs.same.any(1))
