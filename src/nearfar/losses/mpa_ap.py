"""MPA-AP: MPA-DW with the positive and the negative similarities in one sum."""

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

    Mean over samples of log(1 + e^{alpha (delta - S_y)} + sum_{c != y} e^{alpha (S_c + delta)}) + tau R, with the class
    similarity S(x, c) and R of `MultiProxyLoss`. It is at most the MPA-DW of the same samples.

    The options and defaults are those of `MPALoss`. The mean over the batch is ours, as in SoftTriple's released code.

    >>> loss = MPAAPLoss(classes=4, dim=2, delta=0.0, tau=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()  # 1 + 1 + 3
    tensor(5., grad_fn=<ExpBackward0>)
    """

    def terms(self, sims: ClassSimilarities) -> Tensor:
        others = sims.others(scale=self.alpha, shift=self.alpha * self.delta, plus_one=True)
        return torch.logaddexp(others, self.alpha * (self.delta - sims.own()))
