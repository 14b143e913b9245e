"""Proxy-Anchor: compare each proxy with the samples of its class and with all other samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities, others_per_class, own_per_class
from nearfar.losses.proxies.proxy_loss import ProxyLoss
from nearfar.ops.pairs import log_sum_exp
from nearfar.validation import check_not_negative, check_positive


@register("proxy-anchor")
class ProxyAnchorLoss(ProxyLoss):
    """Proxy-Anchor loss (Kim et al., CVPR 2020, arXiv 2003.13911, Eq. 4), on cosines S.

    The loss is
    1/|C+| sum_{c in C+} log(1 + sum_{i: y_i = c} e^{-alpha (S_ic - delta)})
    + 1/C sum_c log(1 + sum_{i: y_i != c} e^{alpha (S_ic + delta)}), where S_ic is the cosine between sample i and the
    proxy of class c, y_i is the class of sample i, C is the number of classes, and C+ are the classes of the batch.

    With multi-hot labels, sample i is a positive of every class that it has, and a negative of all other classes. The
    formula is the same with "sample i has class c" in place of y_i = c. This is our extension.

    The defaults and the initialization of the proxies (normal with variance 2/C) are from the released code. The second
    divisor is always C, even if the batch has a single class, whose proxy then has no negatives.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        alpha: The scale.
        delta: The margin.

    >>> import torch
    >>> loss = ProxyAnchorLoss(classes=4, dim=2, delta=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])) / torch.tensor(2.0).log()  # 1 positive term and 3/4 negative terms
    tensor(1.7500, grad_fn=<DivBackward0>)
    """

    multi_hot = True

    def __init__(self, *, classes: int | Sequence[str], dim: int, alpha: float = 32.0, delta: float = 0.1) -> None:
        super().__init__(classes, dim, gain=math.sqrt(2))
        self.alpha, self.delta = check_positive("alpha", alpha), check_not_negative("delta", delta)

    def cost(self, sims: ClassSimilarities) -> Tensor:
        pos, neg = proxy_anchor_terms(sims, self.alpha, self.delta)
        return pos.sum() / (sims.counts() > 0).sum().clamp_min(1) + neg.mean()


def proxy_anchor_terms(sims: ClassSimilarities, alpha: float, delta: float) -> tuple[Tensor, Tensor]:
    """Compute the positive and the negative term of every class, each [C]; see `ProxyAnchorLoss`.

    The positive term is 0 if the batch has no sample of the class. The negative term is 0 if it has no other samples.
    """
    if sims.labels.ndim == 2:
        has = sims.labels.T.bool()
        pos = log_sum_exp(alpha * (delta - sims.matrix), has, weights=sims.weights, plus_one=True)
        return pos, log_sum_exp(alpha * (sims.matrix + delta), ~has, weights=sims.weights, plus_one=True)
    pos = own_per_class(alpha * (delta - sims.own()), sims.labels, len(sims.matrix), weights=sims.weights)
    neg = others_per_class(sims.matrix, sims.labels, scale=alpha, shift=alpha * delta, weights=sims.weights)
    return pos, neg
