"""MPA: Proxy-Anchor with several proxies per class."""

from __future__ import annotations

from collections.abc import Sequence

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
    + 1/|C-| sum_{c in C-} log(1 + sum_{i: y_i != c} e^{alpha (S_ic + delta)}) + tau R.

    C+ are the classes with a sample in the batch, C- those with a negative: all classes, or in a batch of one class all
    others. S(x, c) = sum_k softmax_k(x.w_ck / gamma) x.w_ck and R are those of `MultiProxyLoss`. With
    proxies_per_class=1 (R = 0), or if the proxies of a class coincide, the loss is Proxy-Anchor. C- and the normal
    initialization of the proxies are ours.

    Args:
        classes: The number of classes, or their names, which labels may then use.
        dim: The dimension of the embeddings.
        proxies_per_class: K; 10 is the paper's (2 on SOP).
        alpha: The scale; the paper does not state it, 32 is Proxy-Anchor's.
        delta: The margin; 0.1 is the paper's.
        gamma: Temperature of the softmax over the proxies of a class; 0.1 is the paper's.
        tau: Weight of the regularizer R; 0.2 is the paper's.
        reg_eps: Added under the square root in R; 1e-5 is that of SoftTriple's released code, the paper has 0.
        similarity: "softmax", "max" or "mean" over the proxies of a class.

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
        )
        self.alpha, self.delta = check_positive("alpha", alpha), delta

    def cost(self, sims: ClassSimilarities) -> Tensor:
        pos, neg = proxy_anchor_terms(sims, self.alpha, self.delta)
        counts = sims.counts()
        with_pos, with_neg = (counts > 0).sum(), (counts.sum() > counts).sum()
        return ratio(pos.sum(), with_pos) + ratio(neg.sum(), with_neg)
