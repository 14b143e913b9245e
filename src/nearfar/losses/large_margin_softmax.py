"""Large-margin softmax: multiply the angle between a sample and its own class by an integer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nearfar.losses.base import full_precision, register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.ops.pairs import ratio
from nearfar.validation import Labels, check_count, check_positive


class AngleMultipleLoss(DataWiseLoss):
    """Base class of the losses that multiply the angle between a sample and the proxy of its own class by `margin`.

    Each logit is the cosine times `scale` times the norm of the embedding. If the class attribute `proxy_norms` is
    True, the logit is also multiplied by the norm of the proxy.
    """

    proxy_norms = False

    def __init__(self, *, classes: int | Sequence[str], dim: int, margin: int = 4, scale: float = 1.0) -> None:
        super().__init__(classes, dim)
        self.margin, self.scale = check_count("margin", margin), check_positive("scale", scale)

    def class_similarities(
        self, embeddings: Tensor, labels: Labels, weights: Tensor | None = None
    ) -> ClassSimilarities:
        sims = super().class_similarities(embeddings, labels, weights)
        norms = torch.linalg.vector_norm(full_precision(embeddings), dim=1)
        return replace(sims, matrix=sims.matrix * self.factors(norms), norms=norms)

    def factors(self, norms: Tensor) -> Tensor:
        """Compute the factors by which the cosines are multiplied, from the norms of the embeddings [B].

        The result has shape [C, B] for C classes, or [1, B] if the factors are the same for all classes.
        """
        if not self.proxy_norms:
            return norms[None]
        proxy_norms: Tensor = torch.linalg.vector_norm(self.proxies.to(norms.dtype), dim=1)
        return proxy_norms[:, None] * norms

    def terms(self, sims: ClassSimilarities) -> Tensor:
        assert sims.norms is not None
        return large_margin_terms(sims, self.factors(sims.norms), self.margin, self.scale)


def large_margin_terms(sims: ClassSimilarities, factors: Tensor, margin: int, scale: float) -> Tensor:
    """Compute the loss of each of the B samples. The result has shape [B].

    Args:
        sims: The similarities, which are cosines times `factors`.
        factors: The factors [C, B] or [1, B]; see `AngleMultipleLoss.factors`.
        margin: The number by which the angle to the sample's own class is multiplied.
        scale: The number by which the logits are multiplied.
    """
    own_factors = factors.expand_as(sims.matrix).gather(0, sims.labels[None])[0]
    return sims.softmax_terms(scale, own_factors * multiply_angle(ratio(sims.own(), own_factors), margin))


@register("large-margin-softmax")
class LargeMarginSoftmaxLoss(AngleMultipleLoss):
    """Large-margin softmax loss (Liu et al., ICML 2016, arXiv 1612.02295).

    The loss is the mean over samples x of class y of -log( e^{f_y} / (e^{f_y} + sum_{c != y} e^{f_c}) ) with f_c =
    scale ||w_c|| ||x|| cos(theta_c) for the other classes and f_y = scale ||w_y|| ||x|| psi(theta_y). w_c is the
    proxy of class c, and theta_c is the angle between x and w_c. The function psi(theta) = (-1)^k cos(margin theta) -
    2k, for theta in [k pi / margin, (k + 1) pi / margin], decreases from 1 at 0 degrees to 1 - 2 margin at 180 degrees.
    Neither embeddings nor proxies are normalized. The paper trains with a weighted mean of psi and the cosine, in which
    the weight of psi grows during training; this loss always uses psi alone.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        margin: The factor of the angle, an integer. The default is that of pytorch-metric-learning.
        scale: A factor of the logits. The default, 1, is the paper's formula.

    >>> loss = LargeMarginSoftmaxLoss(classes=3, dim=2)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()
    tensor(3., grad_fn=<ExpBackward0>)
    """

    proxy_norms = True


@register("sphereface")
class SphereFaceLoss(AngleMultipleLoss):
    """SphereFace, the angular softmax loss (Liu et al., CVPR 2017, arXiv 1704.08063).

    The loss is that of `LargeMarginSoftmaxLoss` with unit proxies: f_c = scale ||x|| cos(theta_c) and
    f_y = scale ||x|| psi(theta_y) for a sample x of class y. The embeddings are not normalized.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        margin: The factor of the angle, an integer. The default is that of pytorch-metric-learning.
        scale: A factor of the logits. The default, 1, is the paper's formula.

    >>> loss = SphereFaceLoss(classes=3, dim=2)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()
    tensor(3., grad_fn=<ExpBackward0>)
    """


def multiply_angle(cos: Tensor, margin: int) -> Tensor:
    """Compute psi(theta) = (-1)^k cos(m theta) - 2k from cos theta, with m = margin and k = floor(m theta / pi).

    cos(m theta) is the Chebyshev polynomial T_m of cos theta, so the gradient is finite everywhere.

    >>> multiply_angle(torch.tensor([1.0, 0.0, -1.0]), 2)
    tensor([ 1., -1., -3.])
    """
    k = (cos.detach().clamp(-1, 1).acos() * (margin / math.pi)).floor().clamp_max(margin - 1)
    before, polynomial = torch.ones_like(cos), cos
    for _ in range(margin - 1):
        before, polynomial = polynomial, 2 * cos * polynomial - before
    return (1 - 2 * (k % 2)) * polynomial - 2 * k
