"""Sub-center ArcFace: several centers per class; the closest one counts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.arcface import add_angle, check_angle
from nearfar.losses.base import register
from nearfar.losses.normalized_softmax import softmax_terms
from nearfar.losses.proxies.class_similarity import ClassSimilarities, cosines
from nearfar.losses.proxies.multi_proxy import pool_similarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.validation import check_positive


@register("subcenter-arcface")
class SubCenterArcFaceLoss(DataWiseLoss):
    """Sub-center ArcFace (Deng et al., ECCV 2020, Eq. 3): ArcFace with S_c = max_k cos(x, w_ck).

    Outliers and mislabeled samples can settle at a center of their own instead of pulling the main one. Equally close
    centers share the gradient.

    Args:
        classes: The number of classes, or their names, which labels may then use.
        dim: The dimension of the embeddings.
        proxies_per_class: The number of centers; 3 is the paper's.
        angle: The margin in degrees, as in ArcFace.
        scale: As in ArcFace.

    >>> import torch
    >>> loss = SubCenterArcFaceLoss(classes=3, dim=2, angle=0.0)
    >>> loss(torch.zeros(1, 2), torch.tensor([0])).exp()
    tensor(3., grad_fn=<ExpBackward0>)
    """

    def __init__(
        self,
        *,
        classes: int | Sequence[str],
        dim: int,
        proxies_per_class: int = 3,
        angle: float = 28.6,
        scale: float = 64.0,
    ) -> None:
        super().__init__(classes, dim, per_class=proxies_per_class)
        self.proxies_per_class = proxies_per_class
        self.angle, self.scale = check_angle(angle), check_positive("scale", scale)

    def compare(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, weights: Tensor | None) -> ClassSimilarities:
        return ClassSimilarities(pool_similarities(cosines(embeddings, proxies), "max"), labels, weights, embeddings)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return softmax_terms(sims, self.scale, add_angle(sims.own(), self.angle))
