"""Large-margin softmax: multiply the angle between a sample and its own class by an integer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.cosines import cosines
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.ops.geometry import dot_matrix
from nearfar.ops.pairs import ratio
from nearfar.validation import check_count, check_positive


class AngleMultipleLoss(DataWiseLoss):
    """Base class of the losses that multiply the angle between a sample and the proxy of its own class by `margin`.

    The logit of a sample x and a class with proxy w is scale ||x|| ||w|| cos theta. If the class attribute
    `proxy_norms` is False, the factor ||w|| is left out.
    """

    proxy_norms = False

    def __init__(self, *, classes: int | Sequence[str], dim: int, margin: int = 4, scale: float = 1.0) -> None:
        super().__init__(classes, dim)
        self.margin, self.scale = check_count("margin", margin), check_positive("scale", scale)

    def compare(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> ClassSimilarities:
        # ||x|| ||w|| cos theta is the dot product
        matrix = dot_matrix(proxies, embeddings) if self.proxy_norms else cosines(embeddings, proxies)
        return ClassSimilarities(matrix, labels, weights, embeddings)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        norms = torch.linalg.vector_norm(sims.embeddings, dim=1)
        if self.proxy_norms:
            norms = norms * torch.linalg.vector_norm(self.proxies.to(norms.dtype), dim=1)[sims.labels]
        return large_margin_terms(sims, norms, self.margin, self.scale)


def large_margin_terms(sims: ClassSimilarities, norms: Tensor, margin: int, scale: float) -> Tensor:
    """Compute the loss of each of the B samples. The result has shape [B].

    Args:
        sims: The similarities, which are cosines times norms.
        norms: The factors of the cosines to the samples' own classes: ||x|| ||w|| or ||x||, [B].
        margin: The number by which the angle to the sample's own class is multiplied.
        scale: The number by which the logits are multiplied.
    """

    def multiply(own: Tensor) -> tuple[Tensor, Tensor]:
        cos = ratio(own, norms.detach())
        psi, slope = multiply_angle(cos, margin)
        # This is norms * psi(own / norms), written so that autograd finds its derivative with respect to the norms.
        return torch.addcmul(slope * own, psi - cos * slope, norms), slope

    return sims.margin_terms(scale, multiply, wide=True)


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


def multiply_angle(cos: Tensor, margin: int) -> tuple[Tensor, Tensor]:
    """Compute psi(theta) = (-1)^k cos(m theta) - 2k and its derivative with respect to cos theta, from cos theta.

    m is `margin`, and k = floor(m theta / pi). cos(m theta) is the Chebyshev polynomial T_m of cos theta. Its
    derivative is m U_{m-1}, with the Chebyshev polynomials U of the second kind, so it is finite everywhere.

    >>> multiply_angle(torch.tensor([1.0, 0.0, -1.0]), 2)
    (tensor([ 1., -1., -3.]), tensor([4., -0., 4.]))
    """
    k = (cos.clamp(-1, 1).acos_() * (margin / math.pi)).floor_().clamp_max_(margin - 1)
    t, u, less = cos, torch.ones_like(cos), cos * cos - 1
    for _ in range(margin - 1):
        t, u = torch.addcmul(cos * t, less, u), torch.addcmul(t, cos, u)
    sign = 1 - 2 * (k % 2)
    return sign * t - 2 * k, (margin * sign) * u
