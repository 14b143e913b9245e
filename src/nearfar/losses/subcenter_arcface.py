"""Sub-center ArcFace: several centers per class, of which a sample uses the closest."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nearfar.losses.arcface import add_angle, check_angle
from nearfar.losses.base import register
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.cosines import cosines
from nearfar.losses.proxies.multi_proxy import pool_similarities
from nearfar.losses.proxies.proxy_loss import DataWiseLoss
from nearfar.validation import check_positive


@register("subcenter-arcface")
class SubCenterArcFaceLoss(DataWiseLoss):
    """Sub-center ArcFace (Deng et al., ECCV 2020, Eq. 3): ArcFace with S_c = max_k cos(x, w_ck).

    w_c1, ..., w_cK are the centers of class c. Outliers and mislabeled samples can move to a separate center instead of
    distorting the main center of their class. If several centers are equally close, the gradient is divided among them.

    Args:
        classes: The number of classes, or a list of class names. With names, labels may be names too.
        dim: The dimension of the embeddings.
        proxies_per_class: The number of centers per class, K. The default is from the paper.
        angle: The margin in degrees, as in `ArcFaceLoss`.
        scale: The scale of the cosines, as in `ArcFaceLoss`.

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
        sim = pool_similarities(cosines(embeddings, proxies, normalize=True), "max")
        return ClassSimilarities(sim, labels, weights, embeddings)

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(self.scale, lambda own: add_angle(own, self.angle))
