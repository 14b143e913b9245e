"""MPA-AP: a variant of MPA-DW with the positive and negative terms of a sample in one logarithm."""

from __future__ import annotations

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.mpa import MPALoss
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss


@register("mpa-ap")
class MPAAPLoss(DataWiseLoss, MPALoss):
    """Data-wise all-paired multi-proxies anchor loss (Saeki et al., arXiv 2110.03997, Eqs. 15 to 17).

    The loss is the mean over samples of log(1 + e^{alpha (delta - S_y)} + sum_{c != y} e^{alpha (S_c + delta)}), plus
    tau R. y is the class of the sample. The class similarity S_c and the regularizer R are those of `MPALoss`. The
    value is never larger than that of MPA-DW on the same batch.

    The options and defaults are those of `MPALoss`. The mean over the batch is our choice; the released code of
    SoftTriple does the same.

    >>> loss = MPAAPLoss(classes=4, dim=2, delta=0.0, tau=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()  # 1 + 1 + 3
    tensor(5., grad_fn=<ExpBackward0>)
    """

    def terms(self, sims: ClassSimilarities) -> Tensor:
        others = sims.others(scale=self.alpha, shift=self.alpha * self.delta, plus_one=True)
        return torch.logaddexp(others, self.alpha * (self.delta - sims.own()))
