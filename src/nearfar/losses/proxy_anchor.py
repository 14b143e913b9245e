"""Proxy-Anchor: each proxy against the samples of its class and against all other samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities, others_per_class, own_per_class
from nearfar.losses.proxies.proxy_loss import ProxyLoss
from nearfar.validation import check_positive


@register("proxy-anchor")
class ProxyAnchorLoss(ProxyLoss):
    """Proxy-Anchor loss (Kim et al., CVPR 2020, arXiv 2003.13911, Eq. 4), on cosines S.

    1/|C+| sum_{c in C+} log(1 + sum_{i: y_i = c} e^{-alpha (S_ic - delta)})
    + 1/C sum_c log(1 + sum_{i: y_i != c} e^{alpha (S_ic + delta)}), C+ the classes of the batch.

    The defaults and the initialization of the proxies (normal, variance 2/C) are the released code's. The second
    divisor is C even in a batch of one class, whose own proxy has no negatives.

    Args:
        classes: The number of classes, or their names, which labels may then use.
        dim: The dimension of the embeddings.
        alpha: The scale.
        delta: The margin.

    >>> import torch
    >>> loss = ProxyAnchorLoss(classes=4, dim=2, delta=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])) / torch.tensor(2.0).log()  # 1 positive term, 3 of 4 negative
    tensor(1.7500, grad_fn=<DivBackward0>)
    """

    def __init__(self, *, classes: int | Sequence[str], dim: int, alpha: float = 32.0, delta: float = 0.1) -> None:
        super().__init__(classes, dim, gain=math.sqrt(2))
        self.alpha, self.delta = check_positive("alpha", alpha), delta

    def cost(self, sims: ClassSimilarities) -> Tensor:
        pos, neg = proxy_anchor_terms(sims, self.alpha, self.delta)
        return pos.sum() / (sims.counts() > 0).sum().clamp_min(1) + neg.mean()


def proxy_anchor_terms(sims: ClassSimilarities, alpha: float, delta: float) -> tuple[Tensor, Tensor]:
    """Compute the positive and the negative term of every class, each [C]; 0 for a class without such samples."""
    pos = own_per_class(alpha * (delta - sims.own()), sims.labels, len(sims.matrix), weights=sims.weights)
    neg = others_per_class(sims.matrix, sims.labels, scale=alpha, shift=alpha * delta, weights=sims.weights)
    return pos, neg
