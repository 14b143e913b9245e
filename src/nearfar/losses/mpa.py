"""MPA: Proxy-Anchor with several proxies per class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.multi_proxy import MultiProxyLoss
from nearfar.losses.proxy_anchor import proxy_anchor_terms
from nearfar.ops.pairs import ratio
from nearfar.validation import check_not_negative, check_positive


@register("mpa")
class MPALoss(MultiProxyLoss):
    """Multi-proxies anchor loss (Saeki et al., arXiv 2110.03997, Eqs. 6 and 7), on class similarities S.

    The loss is
    1/|C+| sum_{c in C+} log(1 + sum_{i: y_i = c} e^{-alpha (S_ic - delta)})
    + 1/|C-| sum_{c in C-} log(1 + sum_{i: y_i != c} e^{alpha (S_ic + delta)}) + tau R.

    y_i is the class of sample i. C+ are the classes of the batch. C- are the classes with at least one negative in the
    batch: all classes, or all other classes if the batch has a single class. The similarity of sample x_i and class c
    with the proxies w_c1, ..., w_cK is S_ic = sum_k softmax_k(x_i.w_ck / gamma) x_i.w_ck. R is a regularizer that pulls
    the proxies of a class together (see `nearfar.losses.proxies.multi_proxy.regularizer`). With proxies_per_class=1, R
    is 0 and the loss equals Proxy-Anchor, except for a batch with a single class, for which Proxy-Anchor divides by the
    number of all classes instead of |C-|.

    The definition of C- is our choice. Our initialization of the proxies follows Proxy-Anchor: normal with variance
    2 / (C K) for C classes. With proxies_per_class=1, training therefore gives the same weights as with Proxy-Anchor.
    The initial norms matter, because the larger the norm of a proxy is, the less a step of Adam rotates it.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        proxies_per_class: The number of proxies per class, K. The default is the paper's value for all datasets except
            SOP, for which the paper uses 2.
        alpha: The scale. The paper does not state it; the default is from Proxy-Anchor.
        delta: The margin. The default is from the paper.
        gamma: Temperature of the softmax over the proxies of a class. The default is from the paper.
        tau: Weight of the regularizer R. The default is from the paper.
        reg_eps: Added under the square root in R. The default is from the released code of SoftTriple; the paper has 0.
        similarity: How to combine the similarities to the proxies of a class: "softmax" (the formula above), "max" or
            "mean".

    >>> import torch
    >>> loss = MPALoss(classes=4, dim=2, delta=0.0, tau=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])) / torch.tensor(2.0).log()
    tensor(2., grad_fn=<DivBackward0>)
    """

    def __init__(
        self,
        *,
        classes: int | Sequence[str],
        dim: int,
        proxies_per_class: int = 10,
        alpha: float = 32.0,
        delta: float = 0.1,
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
            gain=math.sqrt(2),
        )
        self.alpha, self.delta = check_positive("alpha", alpha), check_not_negative("delta", delta)

    def cost(self, sims: ClassSimilarities) -> Tensor:
        pos, neg = proxy_anchor_terms(sims, self.alpha, self.delta)
        counts = sims.counts()
        with_pos, with_neg = (counts > 0).sum(), (counts.sum() > counts).sum()
        return ratio(pos.sum(), with_pos) + ratio(neg.sum(), with_neg)
