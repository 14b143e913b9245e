"""Regularizers: penalties on the embeddings of a batch, or on the proxies of a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearfar.compat.arguments import absent, refusal
from nearfar.compat.distances import BaseDistance, CosineSimilarity, LpDistance
from nearfar.compat.reducer_base import BaseReducer
from nearfar.compat.reducers import DivisorReducer, MeanReducer
from nearfar.compat.utils.common_functions import Recorded
from nearfar.ops.geometry import safe_sqrt

__all__ = [
    "BaseRegularizer",
    "CenterInvariantRegularizer",
    "LpRegularizer",
    "RegularFaceRegularizer",
    "SparseCentersRegularizer",
    "ZeroMeanRegularizer",
]


class BaseRegularizer(Recorded):
    """Base class of regularizers. A subclass implements `compute_loss`."""

    def __init__(
        self,
        *,
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(collect_stats=collect_stats)
        self.distance = self.get_default_distance() if distance is None else distance
        self.reducer = self.get_default_reducer() if reducer is None else reducer

    def get_default_distance(self) -> BaseDistance:
        """Return the distance that is used unless the user passes one."""
        return LpDistance()

    def get_default_reducer(self) -> BaseReducer:
        """Return the reducer that is used unless the user passes one."""
        return MeanReducer()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the penalty, a scalar, for vectors [N, d]."""
        value: Tensor = self.reducer(self.compute_loss(x), x, torch.arange(len(x), device=x.device))
        return value

    def compute_loss(self, x: Tensor) -> dict[str, Any]:
        """Return the loss dictionary for the reducer."""
        raise NotImplementedError


def per_vector(losses: Tensor, **more: Any) -> dict[str, Any]:
    """Return a loss dictionary with one loss per vector."""
    indices = torch.arange(len(losses), device=losses.device)
    return {"loss": {"losses": losses, "indices": indices, "reduction_type": "element", **more}}


class LpRegularizer(BaseRegularizer):
    """The norm ||x_i||_p^power of each vector x_i."""

    def __init__(
        self,
        p: float = 2,
        power: float = 1,
        *,
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, reducer=reducer, collect_stats=collect_stats)
        self.p, self.power = p, power

    def compute_loss(self, x: Tensor) -> dict[str, Any]:
        return per_vector(torch.linalg.vector_norm(x, ord=self.p, dim=1) ** self.power)


class ZeroMeanRegularizer(BaseRegularizer):
    """The absolute value of the sum of the entries of each vector."""

    def compute_loss(self, x: Tensor) -> dict[str, Any]:
        return per_vector(x.sum(1).abs())


class CenterInvariantRegularizer(BaseRegularizer):
    """The penalty (||w_c||^2 - m)^2 / 4 of each proxy w_c, where m is the mean squared norm of all proxies.

    See Wu et al., CVPR 2017, center invariant loss.
    """

    def get_default_distance(self) -> BaseDistance:
        return LpDistance(normalize_embeddings=False)

    def compute_loss(self, x: Tensor) -> dict[str, Any]:
        squared = self.distance.get_norm(x).square()
        return per_vector((squared - squared.mean()).square() / 4)


class RegularFaceRegularizer(BaseRegularizer):
    """The similarity of each proxy to its closest other proxy (Zhao et al., CVPR 2019, "RegularFace")."""

    def __init__(
        self,
        *,
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, reducer=reducer, collect_stats=collect_stats)
        if not self.distance.is_inverted:
            raise refusal(self, "distance", self.distance, "use CosineSimilarity or DotProductSimilarity")

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def compute_loss(self, x: Tensor) -> dict[str, Any]:
        own = torch.eye(len(x), dtype=torch.bool, device=x.device)
        return per_vector(self.distance(x).masked_fill(own, -torch.inf).amax(1))


class SparseCentersRegularizer(BaseRegularizer):
    """The mean of sqrt(2 - 2 S) / 2 over pairs of proxies of the same class, where S is the cosine of the two proxies.

    See Qian et al., ICCV 2019, "SoftTriple", Eq. 9.

    Args:
        num_classes: The number of classes.
        centers_per_class: The number of proxies per class, at least 2. The proxies of a class must be consecutive.
        distance: Must be None or CosineSimilarity(), the default.
        reducer: The reducer, by default DivisorReducer.
        collect_stats: Accepted for compatibility. Regularizers store no statistics.
    """

    same_class: Tensor

    def __init__(
        self,
        num_classes: int,
        centers_per_class: int,
        *,
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(distance=distance, reducer=reducer, collect_stats=collect_stats)
        if centers_per_class < 2:
            raise ValueError(f"centers_per_class must be at least 2, got {centers_per_class}")
        if not isinstance(self.distance, CosineSimilarity):
            raise refusal(self, "distance", self.distance, "use CosineSimilarity")
        kind = torch.arange(num_classes).repeat_interleave(centers_per_class)
        first, second = torch.where((kind[:, None] == kind).triu(1))
        self.register_buffer("same_class", torch.stack([first, second]), persistent=False)

    def get_default_distance(self) -> BaseDistance:
        return CosineSimilarity()

    def get_default_reducer(self) -> BaseReducer:
        return DivisorReducer()

    def compute_loss(self, x: Tensor) -> dict[str, Any]:
        first, second = self.same_class
        distances = safe_sqrt(2 - 2 * self.distance(x)[first, second])
        return per_vector(distances, divisor=2 * len(distances))


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("regularizers", name, __all__)
