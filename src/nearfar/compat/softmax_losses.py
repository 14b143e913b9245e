"""The softmax losses of pytorch-metric-learning."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nearfar.compat.arguments import refusal
from nearfar.compat.distances import BaseDistance, DotProductSimilarity
from nearfar.compat.proxy_losses import ProxyBased
from nearfar.losses.arcface import add_angle
from nearfar.losses.large_margin_softmax import large_margin_terms
from nearfar.losses.p2sgrad import p2sgrad_terms
from nearfar.losses.proxies.class_similarity import ClassSimilarities
from nearfar.losses.proxies.cosines import cosines
from nearfar.losses.proxies.multi_proxy import pool_similarities
from nearfar.ops.geometry import dot_matrix, unit

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nearfar.compat.options import ProxyOptions


class Softmax(ProxyBased):
    """Base class of softmax losses. The proxies are the columns of `W` [d, C], or [d, C K] with K proxies per class."""

    parameter_name = "W"

    def __init__(
        self, num_classes: int, embedding_size: int, *, per_class: int = 1, **options: Unpack[ProxyOptions]
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        self.W = self.make_parameter(embedding_size, num_classes * per_class)

    def similarity(self, rows: Tensor) -> Tensor:
        return cosines(rows, self.W.t().to(rows.dtype))


class NormalizedSoftmaxLoss(Softmax):
    """A loss with the formula of `nearfar.losses.NormalizedSoftmaxLoss`, for any reducer.

    With DotProductSimilarity(normalize_embeddings=False), only the proxies are normalized.
    """

    only_distance = False

    def get_default_distance(self) -> BaseDistance:
        return DotProductSimilarity()

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        if not isinstance(self.distance, DotProductSimilarity):
            raise refusal(self, "distance", self.distance, "use DotProductSimilarity or CosineSimilarity")
        self.temperature = temperature

    def normalize_rows(self, embeddings: Tensor) -> Tensor:
        return unit(embeddings) if self.distance.normalize_embeddings else embeddings

    def logits(self, cosines: Tensor, embeddings: Tensor) -> Tensor:
        return cosines / self.temperature

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(1 / self.temperature)


class CosFaceLoss(Softmax):
    """A loss with the formula of `nearfar.losses.CosFaceLoss`, for any reducer."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.35,
        scale: float = 64,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        self.margin, self.scale = margin, scale

    def logits(self, cosines: Tensor, embeddings: Tensor) -> Tensor:
        return cosines * self.scale

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(self.scale, lambda own: (own - self.margin, None))


class ArcFaceLoss(Softmax):
    """A loss with the formula of `nearfar.losses.ArcFaceLoss`, for any reducer. `margin` is in degrees.

    The gradient is finite for all cosines, including 1 and -1.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64,
        *,
        per_class: int = 1,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, per_class=per_class, **options)
        self.margin, self.scale = math.radians(margin), scale

    def logits(self, cosines: Tensor, embeddings: Tensor) -> Tensor:
        return cosines * self.scale

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return sims.margin_terms(self.scale, lambda own: add_angle(own, math.degrees(self.margin)))


class SubCenterArcFaceLoss(ArcFaceLoss):
    """A loss with the formula of `nearfar.losses.SubCenterArcFaceLoss`, for any reducer."""

    def __init__(
        self,
        *,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64,
        sub_centers: int = 3,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, margin, scale, per_class=sub_centers, **options)
        self.sub_centers = sub_centers

    def similarity(self, rows: Tensor) -> Tensor:
        centers = self.W.t().reshape(self.num_classes, self.sub_centers, -1)
        return pool_similarities(cosines(rows, centers.to(rows.dtype)), "max")

    def pool_centers(self, cosines: Tensor) -> Tensor:
        return cosines.view(-1, self.num_classes, self.sub_centers).amax(2)

    @torch.no_grad()
    def get_outliers(
        self, embeddings: Tensor, labels: Tensor, threshold: float = 75, return_dominant_centers: bool = True
    ) -> Any:
        """Return the indices of the samples farther than `threshold` degrees from the dominant center of their class.

        The dominant center of a class is the center that is the closest one for the largest number of its samples.

        Args:
            embeddings: The embeddings [B, d].
            labels: The class ids [B].
            threshold: The angle in degrees.
            return_dominant_centers: If True, also return the dominant centers [d, C]. For a class without samples,
                the first center is returned.
        """
        labels = labels.to(embeddings.device).long()
        self.cast_parameter(embeddings)
        centers = self.W.t().reshape(self.num_classes, self.sub_centers, -1)
        sims = cosines(unit(embeddings), centers)[labels, :, torch.arange(len(labels), device=labels.device)]
        votes = sims.new_zeros(self.num_classes, self.sub_centers)
        votes.index_put_((labels, sims.argmax(1)), torch.ones_like(labels, dtype=sims.dtype), accumulate=True)
        dominant = votes.argmax(1)
        own = sims.gather(1, dominant[labels][:, None])[:, 0]
        far = (own < math.cos(math.radians(threshold))).nonzero().flatten()
        outliers = far[labels[far].argsort(stable=True)]
        chosen = centers[torch.arange(self.num_classes, device=labels.device), dominant].t()
        return (outliers, chosen) if return_dominant_centers else outliers


class LargeMarginSoftmaxLoss(Softmax):
    """A loss with the formula of `nearfar.losses.LargeMarginSoftmaxLoss`, for any reducer."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: int = 4,
        scale: float = 1,
        **options: Unpack[ProxyOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        self.margin, self.scale = int(margin), scale

    def normalize_rows(self, embeddings: Tensor) -> Tensor:
        return embeddings

    def similarity(self, rows: Tensor) -> Tensor:
        return dot_matrix(self.W.t().to(rows.dtype), rows)  # ||x|| ||w|| cos theta

    def proxy_norms(self) -> Tensor | None:
        """Return the factors of the logits of each class [C], or None if they are 1."""
        norms: Tensor = torch.linalg.vector_norm(self.W, dim=0)
        return norms

    def logits(self, cosines: Tensor, embeddings: Tensor) -> Tensor:
        norms = self.proxy_norms()
        scaled: Tensor = cosines * torch.linalg.vector_norm(embeddings, dim=1)[:, None] * self.scale
        return scaled if norms is None else scaled * norms

    def terms(self, sims: ClassSimilarities) -> Tensor:
        norms, proxy_norms = torch.linalg.vector_norm(sims.embeddings, dim=1), self.proxy_norms()
        if proxy_norms is not None:
            norms = norms * proxy_norms.to(norms.dtype)[sims.labels]
        return large_margin_terms(sims, norms, self.margin, self.scale)


class SphereFaceLoss(LargeMarginSoftmaxLoss):
    """A loss with the formula of `nearfar.losses.SphereFaceLoss`, for any reducer."""

    def similarity(self, rows: Tensor) -> Tensor:
        return cosines(rows, self.W.t().to(rows.dtype))  # ||x|| cos theta

    def proxy_norms(self) -> Tensor | None:
        return None


class P2SGradLoss(ProxyBased):
    """A loss with the formula of `nearfar.losses.P2SGradLoss`.

    The proxies are the columns of `weight` [d, C] for C classes. They have unit length.
    """

    parameter_name = "weight"

    def __init__(self, descriptors_dim: int, num_classes: int, **options: Unpack[ProxyOptions]) -> None:
        super().__init__(num_classes, descriptors_dim, **options)
        self.descriptors_dim = descriptors_dim
        self.weight = self.make_parameter(descriptors_dim, num_classes)

    def init_parameter(self, parameter: Tensor) -> None:
        nn.init.uniform_(parameter, -1, 1)
        parameter.data = nn.functional.normalize(parameter.data, dim=0)

    def similarity(self, rows: Tensor) -> Tensor:
        # As in pytorch-metric-learning, normalize the proxies in place, so that no gradient flows through the norm.
        self.weight.data = nn.functional.normalize(self.weight.data, dim=0)
        return (rows @ self.weight).T

    def terms(self, sims: ClassSimilarities) -> Tensor:
        return p2sgrad_terms(sims)
