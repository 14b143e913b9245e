"""Losses with several proxies per class: their class similarity, and a regularizer that pulls proxies together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.cosines import cosines, cosines_and_gram
from nearfar.losses.proxies.proxy_loss import ProxyLoss
from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.geometry import safe_sqrt
from nearfar.validation import check_choice, check_not_negative, check_positive

STRATEGIES = ("softmax", "max", "mean")


class MultiProxyLoss(ProxyLoss):
    """Base class of proxy losses with K proxies per class.

    The similarity of a sample x and a class c with proxies w_c1, ..., w_cK is
    S(x, c) = sum_k softmax_k(x.w_ck / gamma) x.w_ck (MPA, arXiv 2110.03997, Eq. 1), or the maximum or the mean of the
    cosines x.w_ck (see `pool_similarities`). tau R is added to the loss, where R is a regularizer (Eq. 3, see
    `regularizer`).

    Args:
        classes: See `ProxyLoss`.
        dim: See `ProxyLoss`.
        proxies_per_class: The number of proxies per class, K.
        similarity: How to combine the K cosines: "softmax", "max" or "mean".
        gamma: Temperature of the softmax.
        tau: Weight of the regularizer R.
        reg_eps: Added under the square root in R.
        gain: See `ProxyLoss`.
    """

    def __init__(
        self,
        classes: int | Sequence[str],
        dim: int,
        *,
        proxies_per_class: int,
        similarity: str,
        gamma: float,
        tau: float,
        reg_eps: float,
        gain: float | None = None,
    ) -> None:
        super().__init__(classes, dim, per_class=proxies_per_class, gain=gain)
        self.proxies_per_class = proxies_per_class
        self.similarity = check_choice("similarity", similarity, STRATEGIES)
        self.gamma = check_positive("gamma", gamma)
        self.tau, self.reg_eps = check_not_negative("tau", tau), check_not_negative("reg_eps", reg_eps)

    def compare(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> ClassSimilarities:
        if self.tau > 0:
            sim, gram = cosines_and_gram(embeddings, proxies, normalize=True)
        else:
            sim, gram = cosines(embeddings, proxies, normalize=True), None
        return ClassSimilarities(pool_similarities(sim, self.similarity, self.gamma), labels, weights, embeddings, gram)

    def penalty(self, sims: ClassSimilarities) -> Tensor | None:
        return None if sims.gram is None else self.tau * regularizer(sims.gram, self.reg_eps)


def pool_similarities(sim: Tensor, strategy: str = "softmax", gamma: float = 0.1) -> Tensor:
    """Compute the class similarities S(x, c) [C, B] from the cosines s to the proxies [C, K, B] (MPA, Eq. 1).

    The strategy "softmax" computes sum_k q_k s_k with q = softmax(s / gamma). "max" and "mean" take the maximum or the
    mean of the K cosines; they are the limits of "softmax" for gamma -> 0 and gamma -> inf. With K = 1, all three are
    the cosine itself. If several cosines are equal to the maximum, "max" divides the gradient equally among them.

    >>> pool_similarities(torch.tensor([[[0.0], [1.0]]]), "mean")
    tensor([[0.5000]])
    """
    if sim.shape[1] == 1:
        return sim[:, 0]
    if strategy == "max":
        largest: Tensor = _Max.apply(sim)  # type: ignore[no-untyped-call]
        return largest
    if strategy == "mean":
        return sim.mean(1)
    result: Tensor = _SoftmaxMean.apply(sim, gamma)  # type: ignore[no-untyped-call]
    return result


def regularizer(gram: Tensor, eps: float = 1e-5) -> Tensor:
    """Compute R = sum_c sum_{t < s} sqrt(2 + eps - 2 w_cs.w_ct) / (C K (K - 1)), a scalar.

    For eps=0, R is half the mean distance between two proxies of the same class (MPA, Eq. 3). The default eps is that
    of the released code of SoftTriple. With eps=0, the gradient grows without bound as two proxies approach each
    other, and it is set to 0 if they are exactly equal. R is 0 if K = 1.

    Args:
        gram: The cosines w_cs.w_ct between the proxies of each class [C, K, K].
        eps: Added under the square root.
    """
    c, k, _ = gram.shape
    if k == 1:
        return 0.0 * gram.sum()
    return safe_sqrt(2 + eps - 2 * gram).triu(1).sum() / (c * k * (k - 1))


class _Max(torch.autograd.Function):
    """`sim.amax(1)`, with fewer passes in the backward pass."""

    @staticmethod
    def forward(ctx: Any, sim: Tensor) -> Tensor:
        top = sim.amax(1, keepdim=True)
        ctx.save_for_backward(sim, top)
        return top.squeeze(1)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> Tensor:
        sim, top = ctx.saved_tensors
        is_top = sim == top
        share = g / is_top.view(torch.uint8).sum(1, dtype=torch.int32)
        gradient: Tensor = is_top * share.unsqueeze(1)
        return gradient


class _SoftmaxMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sim: Tensor, gamma: float) -> Tensor:
        q = (sim - sim.amax(1, keepdim=True)).mul_(1 / gamma).exp_()
        q.div_(q.sum(1, keepdim=True))
        mean = (q * sim).sum(1, keepdim=True)
        ctx.gamma = gamma
        ctx.save_for_backward(sim, q, mean)
        return mean.squeeze(1)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        # The derivative of S = sum_k q_k s_k with q = softmax(s / gamma) is dS/ds_k = q_k (1 + (s_k - S) / gamma).
        sim, q, mean = ctx.saved_tensors
        g = g.unsqueeze(1)
        return (sim * (g / ctx.gamma)).add_(g * (1 - mean / ctx.gamma)).mul_(q), None
