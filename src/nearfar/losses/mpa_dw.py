"""MPA-DW: a variant of MPA with one term per sample, which compares the sample with all classes."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.mpa import MPALoss
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.ops.pairs import softplus


@register("mpa-dw")
class MPADWLoss(DataWiseLoss, MPALoss):
    """Data-wise multi-proxies anchor loss (Saeki et al., arXiv 2110.03997, Eqs. 12 and 13).

    The loss is the mean over samples of log(1 + e^{-alpha (S_y - delta)}) + log(1 + sum_{c != y} e^{alpha (S_c +
    delta)}), plus tau R. y is the class of the sample. The class similarity S_c and the regularizer R are those of
    `MPALoss`. The value is never smaller than that of MPA-AP on the same batch.

    The options and defaults are those of `MPALoss`. The mean over the batch is our choice; the released code of
    SoftTriple does the same.

    >>> import torch
    >>> loss = MPADWLoss(classes=4, dim=2, delta=0.0, tau=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()  # (1 + 1) (1 + 3)
    tensor(8., grad_fn=<ExpBackward0>)
    """

    def terms(self, sims: ClassSimilarities) -> Tensor:
        pos = softplus(self.alpha * (self.delta - sims.own()))
        return pos + sims.others(scale=self.alpha, shift=self.alpha * self.delta, plus_one=True)
