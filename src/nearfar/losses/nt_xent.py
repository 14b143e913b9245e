"""NT-Xent: softmax cross-entropy of each positive pair against the negatives of the anchor."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.n_pair import positives_against_negatives
from nearfar.losses.pair_batch import PairBatch
from nearfar.losses.pair_loss import PairLoss
from nearfar.ops.pairs import Pairs
from nearfar.validation import check_positive


@register("nt-xent")
class NTXentLoss(PairLoss):
    """Normalized temperature-scaled cross entropy (Chen et al., SimCLR, ICML 2020, Eq. 1), with labels, on cosines S.

    The loss is the mean over ordered positive pairs (i, p) of
    -log( e^{S_ip/T} / (e^{S_ip/T} + sum_{n in N_i} e^{S_in/T}) ), where N_i are the negatives of anchor i. The other
    positives of i are not in the denominator.

    Args:
        temperature: The temperature T. The default is from pytorch-metric-learning; SimCLR uses 0.1 to 0.5.

    >>> import torch
    >>> NTXentLoss()(torch.eye(3), torch.tensor([0, 0, 1]))  # the negative is as close as the positive
    tensor(0.6931)
    """

    def __init__(self, *, temperature: float = 0.07) -> None:
        super().__init__()
        self.temperature = check_positive("temperature", temperature)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        return positives_against_negatives(pairs, pairs.sim / self.temperature)
