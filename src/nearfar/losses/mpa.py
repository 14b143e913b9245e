"""MPA: Proxy-Anchor with several proxies a class."""

from __future__ import annotations

from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.multi_proxy import MultiProxyLoss
from nearfar.losses.proxy_anchor import proxy_anchor_terms
from nearfar.ops.pairs import ratio
from nearfar.validation import check_positive


@register("mpa")
class MPALoss(MultiProxyLoss):
    """Multi-proxies anchor loss (Saeki et al., arXiv 2110.03997, Eqs. 6 and 7), on class similarities S.

    1/|C+| sum_{c in C+} log(1 + sum_{i: y_i = c} e^{-alpha (S_ic - delta)})
    + 1/|C-| sum_{c in C-} log(1 + sum_{i: y_i != c} e^{alpha (S_ic + delta)}) + tau R,
    C+ the classes with a sample in the batch, C- those with a negative: all, or in a batch of one class all others.
    S(x, c) = sum_k softmax_k(x.w_ck / gamma) x.w_ck and R as in `MultiProxyLoss`. With proxies_per_class=1 (R = 0), or
    where the proxies of a class coincide, it is Proxy-Anchor.

    delta=0.1, gamma=0.1, tau=0.2 and 10 proxies a class (2 on SOP) are the paper's. alpha=32, which the paper does not
    give, is Proxy-Anchor's; reg_eps=1e-5 is SoftTriple's released code's (the paper has 0); C- and the start of the
    proxies (normal) are ours.

    >>> import torch
    >>> loss = MPALoss(classes=4, dim=2, delta=0.0, tau=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])) / torch.tensor(2.0).log()
    tensor(2., grad_fn=<DivBackward0>)
    """

    def __init__(
        self,
        *,
        classes: int,
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
        )
        self.alpha, self.delta = check_positive("alpha", alpha), delta

    def cost(self, sims: ClassSimilarities) -> Tensor:
        pos, neg = proxy_anchor_terms(sims, self.alpha, self.delta)
        counts = sims.counts()
        with_pos, with_neg = (counts > 0).sum(), (counts.sum() > counts).sum()
        return ratio(pos.sum(), with_pos) + ratio(neg.sum(), with_neg)
