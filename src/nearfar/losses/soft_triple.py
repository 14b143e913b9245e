"""SoftTriple: softmax cross-entropy over classes with several proxies each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.multi_proxy import MultiProxyLoss
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.validation import check_not_negative, check_positive


@register("soft-triple")
class SoftTripleLoss(MultiProxyLoss, DataWiseLoss):
    """SoftTriple loss (Qian et al., ICCV 2019, arXiv 1909.05235), on class similarities S.

    The loss is the mean over samples of
    -log( e^{scale (S_y - delta)} / (e^{scale (S_y - delta)} + sum_{c != y} e^{scale S_c}) ), plus tau R. y is the class
    of the sample. The similarity of sample x and class c with the proxies w_c1, ..., w_cK is
    S_c = sum_k softmax_k(x.w_ck / gamma) x.w_ck. R is a regularizer that pulls the proxies of a class together (see
    `nearfar.losses.proxies.multi_proxy.regularizer`). If there is only one class, the loss is tau R.

    The defaults, the mean over the batch, and the initial variance 1/(3 C K) of the proxies for C classes are from the
    released code.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        proxies_per_class: The number of proxies per class, K.
        scale: The scale of the similarities (lambda in the paper).
        delta: The margin.
        gamma: Temperature of the softmax over the proxies of a class.
        tau: Weight of the regularizer R.
        reg_eps: Added under the square root in R.
        similarity: How to combine the similarities to the proxies of a class. "softmax" is the formula above. "max" and
            "mean" are our additions.

    >>> import torch
    >>> loss = SoftTripleLoss(classes=3, dim=2, delta=0.0, tau=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()
    tensor(3., grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        *,
        classes: int | Sequence[str],
        dim: int,
        proxies_per_class: int = 10,
        scale: float = 20.0,
        delta: float = 0.01,
        gamma: float = 0.1,
        tau: float = 0.2,
        reg_eps: float = 1e-5,
        similarity: str = "softmax",
    ) -> None:
        super().__init__(
            classes,
            dim,
            proxies_per_class=proxies_per_class,
            similarity=similarity,
            gamma=gamma,
            tau=tau,
            reg_eps=reg_eps,
            gain=1 / math.sqrt(3),
        )
        self.scale, self.delta = check_positive("scale", scale), check_not_negative("delta", delta)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(self.scale, lambda own: (own - self.delta, None))
