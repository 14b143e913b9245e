"""Distances for losses and miners: Euclidean (p = 2 only), cosine, dot product and signal-to-noise ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from nearfar.compat.arguments import absent, refusal
from nearfar.losses.snr import snr_distance
from nearfar.ops.geometry import cosine_matrix, distance_matrix, dot_matrix, unit, unit_distance_matrix

__all__ = ["CosineSimilarity", "DotProductSimilarity", "LpDistance", "SNRDistance"]


class Distance:
    """Base class of distances and similarities.

    `sign` is +1 for a similarity, where larger values mean closer, and -1 for a distance.
    """

    sign = -1

    def __init__(self, *, normalize_embeddings: bool = True, p: float = 2, power: float = 1) -> None:
        if p != 2:
            raise refusal(self, "p", p, "use p=2")
        if power != 1 and not isinstance(self, LpDistance):
            raise refusal(self, "power", power, "use power=1")
        self.normalize_embeddings, self.p, self.power = normalize_embeddings, p, power

    @property
    def is_inverted(self) -> bool:
        """Whether larger values mean closer. The name is that of pytorch-metric-learning."""
        return self.sign > 0

    def __call__(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        """Compute the matrix [A, R] between A query vectors and R reference vectors, by default the queries."""
        raise NotImplementedError

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        """Compute the matrix between x and y as in `__call__`, negated for a distance so that larger means closer."""
        return self(x, y) if self.is_inverted else -self(x, y)

    def __repr__(self) -> str:
        options = f"normalize_embeddings={self.normalize_embeddings}, power={self.power}"
        return f"{type(self).__name__}({options})"


class LpDistance(Distance):
    """The distance ||x_i - y_j||^power of vectors, which are normalized unless normalize_embeddings=False."""

    def __call__(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        if self.normalize_embeddings:
            if self.power == 2:
                return 2 - 2 * cosine_matrix(query_emb, ref_emb)
            matrix = unit_distance_matrix(query_emb, ref_emb)
        else:
            matrix = distance_matrix(query_emb, ref_emb)
        return matrix if self.power == 1 else matrix**self.power


class DotProductSimilarity(Distance):
    """The dot product x_i . y_j of vectors, which are normalized unless normalize_embeddings=False.

    Normalization is the default, as in pytorch-metric-learning.
    """

    sign = 1

    def __call__(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        matrix = cosine_matrix if self.normalize_embeddings else dot_matrix
        return matrix(query_emb, ref_emb)


class CosineSimilarity(DotProductSimilarity):
    """The cosine of two vectors."""

    def __init__(self, *, p: float = 2, power: float = 1) -> None:
        super().__init__(p=p, power=power)


class SNRDistance(Distance):
    """The ratio var(x_i - y_j) / var(x_i), where var is the variance over the dimensions of a vector.

    The vectors are normalized unless normalize_embeddings=False.
    """

    def __call__(self, query_emb: Tensor, ref_emb: Tensor | None = None) -> Tensor:
        if self.normalize_embeddings:
            query_emb, ref_emb = unit(query_emb), None if ref_emb is None else unit(ref_emb)
        return snr_distance(query_emb, ref_emb)


def checked(what: object, distance: Distance | None, default: Distance, *, only: bool = False) -> Distance:
    """Return the distance, or the default if it is None.

    Args:
        what: The loss or miner, for error messages.
        distance: The distance that the user passed.
        default: The default of the loss or miner.
        only: Whether any distance other than the default is an error.
    """
    if distance is None:
        return default
    if not isinstance(distance, Distance):
        raise refusal(what, "distance", distance, "use one from nearfar.compat.distances")
    if only and not _equal(distance, default):
        raise refusal(what, "distance", distance, f"use the default, {default!r}")
    return distance


def _equal(one: Distance, other: Distance) -> bool:
    if isinstance(one, DotProductSimilarity) and isinstance(other, DotProductSimilarity):
        return one.normalize_embeddings == other.normalize_embeddings
    return repr(one) == repr(other)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("distances", name, __all__)
