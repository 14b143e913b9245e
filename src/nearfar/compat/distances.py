"""Distances and similarities for losses and miners."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nearfar.compat.arguments import absent, refusal
from nearfar.compat.utils.common_functions import Recorded
from nearfar.losses.snr import snr_distance
from nearfar.ops.geometry import chord, distance_matrix, dot_matrix, negative_distance_matrix, unit

__all__ = [
    "BaseDistance",
    "BatchedDistance",
    "CosineSimilarity",
    "DotProductSimilarity",
    "LpDistance",
    "SNRDistance",
]


class BaseDistance(Recorded):
    """Base class of distances and similarities. A subclass implements `compute_mat`, and `pairwise_distance` if needed.

    Args:
        normalize_embeddings: Whether to divide each vector by its p-norm.
        p: The order of the norm.
        power: The exponent that is applied to the distances.
        is_inverted: Whether larger values mean closer vectors, as in a similarity.
        collect_stats: Whether to store the mean norms of the vectors before and after normalization.
    """

    def __init__(
        self,
        normalize_embeddings: bool = True,
        p: float = 2,
        power: float = 1,
        is_inverted: bool = False,
        *,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(collect_stats=collect_stats)
        self.normalize_embeddings, self.p, self.power, self.is_inverted = normalize_embeddings, p, power, is_inverted

    @property
    def sign(self) -> int:
        """Return +1 for a similarity, where larger values mean closer, and -1 for a distance."""
        return 1 if self.is_inverted else -1

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """Compute the distance matrix [A, R] of A queries and R references. The references default to the queries."""
        self.check_shapes(query_emb, ref_emb)
        query = self.maybe_normalize(query_emb)
        ref = query if ref_emb is None else self.maybe_normalize(ref_emb)
        self.set_default_stats(query_emb, query_emb if ref_emb is None else ref_emb, query, ref)
        matrix = self.compute_mat(query, ref)
        return matrix if self.power == 1 else matrix**self.power

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Compute the distance matrix [A, R] of A queries and R references that are already normalized.

        Do not apply `power`; `forward` does.
        """
        raise NotImplementedError

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Compute the distances [N] between the i-th query and the i-th reference, for N queries and N references."""
        raise NotImplementedError

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        """Compute the similarities [A, R] of A vectors x and R vectors y.

        Larger values mean closer vectors, so distances are negated.
        """
        matrix: Tensor = self(x, y)
        return matrix if self.is_inverted else -matrix

    def smallest_dist(self, *args: Any, **kwargs: Any) -> Any:
        """Return the values of the closest pairs: call `torch.min`, or `torch.max` for a similarity."""
        return (torch.max if self.is_inverted else torch.min)(*args, **kwargs)

    def largest_dist(self, *args: Any, **kwargs: Any) -> Any:
        """Return the values of the farthest pairs: call `torch.max`, or `torch.min` for a similarity."""
        return (torch.min if self.is_inverted else torch.max)(*args, **kwargs)

    def margin(self, x: Any, y: Any) -> Any:
        """Return x - y for distances x and y, or y - x for similarities. It is positive if x means farther than y."""
        return y - x if self.is_inverted else x - y

    def normalize(self, embeddings: Tensor, dim: int = 1, **kwargs: Any) -> Tensor:
        """Divide vectors by their p-norm."""
        if self.p == 2 and dim == 1 and embeddings.ndim == 2:
            return unit(embeddings)
        return torch.nn.functional.normalize(embeddings, p=self.p, dim=dim, **kwargs)

    def maybe_normalize(self, embeddings: Tensor, dim: int = 1, **kwargs: Any) -> Tensor:
        """Divide vectors by their p-norm if the option `normalize_embeddings` is set."""
        return self.normalize(embeddings, dim=dim, **kwargs) if self.normalize_embeddings else embeddings

    def get_norm(self, embeddings: Tensor, dim: int = 1, **kwargs: Any) -> Tensor:
        """Return the p-norms of vectors."""
        norms: Tensor = torch.linalg.vector_norm(embeddings, ord=self.p, dim=dim, **kwargs)
        return norms

    def set_default_stats(self, query_emb: Tensor, ref_emb: Tensor, query: Tensor, ref: Tensor) -> None:
        """Store the mean norms of the vectors if `collect_stats` is set."""
        if self.collect_stats:
            with torch.no_grad():
                self.initial_avg_query_norm = self.get_norm(query_emb).mean().item()
                self.initial_avg_ref_norm = self.get_norm(ref_emb).mean().item()
                self.final_avg_query_norm = self.get_norm(query).mean().item()
                self.final_avg_ref_norm = self.get_norm(ref).mean().item()

    def check_shapes(self, query_emb: Tensor, ref_emb: Tensor | None) -> None:
        """Raise an error unless `query_emb` and `ref_emb` are matrices of shape [N, d]."""
        for name, x in (("embeddings", query_emb), ("ref_emb", ref_emb)):
            if x is not None and x.ndim != 2:
                raise ValueError(f"{name} must have shape [N, d], got shape {list(x.shape)}")

    def __repr__(self) -> str:
        norm = "" if self.p == 2 else f", p={self.p}"
        return f"{type(self).__name__}(normalize_embeddings={self.normalize_embeddings}, power={self.power}{norm})"


Distance = BaseDistance


class LpDistance(BaseDistance):
    """The distance ||x_i - y_j||_p^power between vectors, which are normalized unless normalize_embeddings=False."""

    def __init__(
        self,
        normalize_embeddings: bool = True,
        p: float = 2,
        power: float = 1,
        *,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(normalize_embeddings, p, power, collect_stats=collect_stats)

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        if type(self) is LpDistance and self.normalize_embeddings and self.p == 2 and self.power == 2:
            self.check_shapes(query_emb, ref_emb)
            query = unit(query_emb)
            ref = None if ref_emb is None else unit(ref_emb)
            self.set_default_stats(
                query_emb, query_emb if ref_emb is None else ref_emb, query, query if ref is None else ref
            )
            return 2 - 2 * dot_matrix(query, ref)
        return super().forward(query_emb, ref_emb)

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        plain = self.normalize_embeddings and self.p == 2 and self.power == 1 and not self.collect_stats
        if type(self) is LpDistance and plain:
            self.check_shapes(x, y)
            return negative_distance_matrix(x, y)  # negating the distances would take two more passes
        return super().similarity(x, y)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        if self.p != 2:
            return torch.cdist(query_emb, ref_emb, p=self.p)
        ref = None if ref_emb is query_emb else ref_emb
        return chord(dot_matrix(query_emb, ref)) if self.normalize_embeddings else distance_matrix(query_emb, ref)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return torch.nn.functional.pairwise_distance(query_emb, ref_emb, p=self.p)


class DotProductSimilarity(BaseDistance):
    """The dot product x_i . y_j of vectors, which are normalized unless normalize_embeddings=False.

    Normalization is the default, as in pytorch-metric-learning.
    """

    def __init__(
        self,
        normalize_embeddings: bool = True,
        p: float = 2,
        power: float = 1,
        *,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__(normalize_embeddings, p, power, True, collect_stats=collect_stats)

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return dot_matrix(query_emb, None if ref_emb is query_emb else ref_emb)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return (query_emb * ref_emb).sum(1)


class CosineSimilarity(DotProductSimilarity):
    """The cosine of two vectors."""

    def __init__(self, *, p: float = 2, power: float = 1, collect_stats: bool | None = None) -> None:
        super().__init__(p=p, power=power, collect_stats=collect_stats)
        if p != 2:
            raise refusal(self, "p", p, "use p=2")


class SNRDistance(BaseDistance):
    """The ratio var(x_i - y_j) / var(x_i), where var is the variance over the dimensions of a vector.

    The vectors are normalized unless normalize_embeddings=False.
    """

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return snr_distance(query_emb, None if ref_emb is query_emb else ref_emb)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        return (query_emb - ref_emb).var(1) / query_emb.var(1)


class BatchedDistance(torch.nn.Module):
    """Compute a distance matrix in blocks of rows.

    Args:
        distance: The distance. All its attributes are also available on this object.
        iter_fn: A function that is called as `iter_fn(block, start, end)`, where `block` holds the rows from `start` to
            `end` - 1 of the distance matrix.
        batch_size: The number of rows per block.
    """

    def __init__(
        self, distance: BaseDistance, iter_fn: Callable[[Tensor, int, int], Any] | None = None, batch_size: int = 32
    ) -> None:
        super().__init__()
        self.distance, self.iter_fn, self.batch_size = distance, iter_fn, batch_size

    def forward(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> None:
        if self.iter_fn is None:
            raise ValueError("BatchedDistance: iter_fn is None: set it to the function that receives the blocks")
        ref_emb = query_emb if ref_emb is None else ref_emb
        for start in range(0, len(query_emb), self.batch_size):
            end = min(start + self.batch_size, len(query_emb))
            self.iter_fn(self.distance(query_emb[start:end], ref_emb), start, end)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("distance"), name)


def checked(what: object, distance: BaseDistance | None, default: BaseDistance, *, only: bool = False) -> BaseDistance:
    """Return `distance`, or `default` if `distance` is None.

    Args:
        what: The loss or miner, for error messages.
        distance: The distance that the user passed.
        default: The default of the loss or miner.
        only: If True, any distance other than the default is an error.
    """
    if distance is None:
        return default
    if not isinstance(distance, BaseDistance):
        raise refusal(what, "distance", distance, "use one from nearfar.compat.distances")
    if only and not _equal(distance, default):
        raise refusal(what, "distance", distance, f"use the default, {default!r}")
    return distance


def _equal(one: BaseDistance, other: BaseDistance) -> bool:
    if isinstance(one, DotProductSimilarity) and isinstance(other, DotProductSimilarity):
        return (one.normalize_embeddings, one.power) == (other.normalize_embeddings, other.power)
    return repr(one) == repr(other)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("distances", name, __all__)
