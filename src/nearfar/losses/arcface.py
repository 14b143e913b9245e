"""ArcFace: a softmax with an angular margin on the sample's own class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.validation import check_positive


@register("arcface")
class ArcFaceLoss(DataWiseLoss):
    """ArcFace, the additive angular margin loss (Deng et al., CVPR 2019, arXiv 1801.07698, Eq. 3), on cosines S.

    The loss is the mean over samples of
    -log( e^{scale cos(theta_y + angle)} / (e^{scale cos(theta_y + angle)} + sum_{c != y} e^{scale S_c}) ), where S_c is
    the cosine between the sample and the proxy of class c, y is the class of the sample, and theta_y = arccos S_y.
    Where theta_y + angle exceeds 180 degrees, the cosine would increase again; `add_angle` replaces it there by a
    decreasing function. If there is only one class, the loss is 0.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        angle: The margin in degrees. The default is the paper's 0.5 radians, rounded.
        scale: The scale of the cosines. The default is from the paper.

    >>> loss = ArcFaceLoss(classes=3, dim=2, angle=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()
    tensor(3., grad_fn=<ExpBackward0>)
    """

    def __init__(self, *, classes: int | Sequence[str], dim: int, angle: float = 28.6, scale: float = 64.0) -> None:
        super().__init__(classes, dim)
        self.angle, self.scale = check_angle(angle), check_positive("scale", scale)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(self.scale, lambda own: add_angle(own, self.angle))


def add_angle(cos: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    """Compute cos(theta + m) and its derivative with respect to cos theta, elementwise, from cos theta.

    cos(theta + m) = cos theta cos m - sin theta sin m with sin theta = sqrt(1 - cos^2 theta). At theta = 0, where the
    square root is not differentiable, its derivative is set to 0. For theta >= 180 degrees - m, the result is
    cos theta - m sin m (m in radians) instead, so that a more distant sample never has a lower loss. The released code
    does the same by default (easy_margin off).

    Args:
        cos: The cosines.
        angle: m in degrees.

    Returns:
        The values and the derivatives, which are finite everywhere.

    >>> add_angle(torch.tensor([1.0, 0.0, -1.0]), 60.0)
    (tensor([ 0.5000, -0.8660, -1.9069]), tensor([0.5000, 0.5000, 1.0000]))
    """
    m = math.radians(angle)
    sin = (1 - cos * cos).clamp_min_(0).sqrt_()
    is_far = cos <= -math.cos(m)
    turned = (cos * math.cos(m)).sub_(sin, alpha=math.sin(m))
    slope = (cos / sin).mul_(math.sin(m)).masked_fill_(sin == 0, 0.0).add_(math.cos(m)).masked_fill_(is_far, 1.0)
    return torch.where(is_far, cos - m * math.sin(m), turned), slope


def check_angle(angle: float) -> float:
    """Check that an angle in degrees is at least 0 and below 90, and return it."""
    if not 0 <= angle < 90:
        raise ValueError(f"angle must be in degrees, at least 0 and below 90, got {angle}")
    return angle
