"""A similarity that both rows of a pair can use, so that one product serves two rankings.

cosine     c(i, j) = x_i.x_j / (|x_i| |x_j|)                         = s(i, j) / |x_i|
euclidean  c(i, j) = x_i.x_j - |x_i|^2 / 2 - |x_j|^2 / 2              = s(i, j) - |x_i|^2 / 2

c orders the gallery of query i as s of `nearfar.metrics.similarity` does, and is symmetric. A matrix product gives it
with a rounding error of at most `slack`; for what the slack leaves open `exact_pairs` gives s of single pairs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.metrics.retrieval import Floats
from nearfar.metrics.similarity import Gallery
from nearfar.validation import Array, Ints

# Two gathered blocks of rows in float64 stay in a core's cache.
PAIRS = 128


@dataclass(frozen=True)
class Mutual:
    """A gallery as the two factors of c. `unit` brings Euclidean rows to length 1 at most (a power of two, exact)."""

    gallery: Gallery
    unit: float
    slack: float

    def left(self, places: slice) -> Tensor:
        """[b, d], or for Euclidean distance [b, d + 2]: the rows and what turns their product into c."""
        return self._factor(places, turned=False)

    def right(self, places: slice) -> Tensor:
        """The other factor: c = left @ right.T."""
        return self._factor(places, turned=True)

    def _factor(self, places: slice, *, turned: bool) -> Tensor:
        rows = self.gallery.moved(places)
        if self.gallery.distance == "cosine":
            return rows.mul(self.gallery.scale[places, None])
        half = self.gallery.shift[places, None] * self.unit**2
        one = torch.ones_like(half)
        return torch.cat([rows.mul(self.unit), *((-one, -half) if turned else (half, one))], dim=1)

    def exact_pairs(self, queries: Ints, places: Ints) -> tuple[Array, Floats]:
        """s(q, g) and c(q, g) of single pairs: dot products in float64, s then rounded as a block of similarities is.

        The order of summation is the same for every pair, so equal rows have equal similarities wherever they stand.
        """
        s, c = np.empty(len(queries), dtype=self.gallery.scale.numpy().dtype), np.empty(len(queries))
        for start in range(0, len(queries), PAIRS):
            here = slice(start, start + PAIRS)
            s[here], c[here] = self._pairs(queries[here], places[here])
        return s, c

    def _pairs(self, queries: Ints, places: Ints) -> tuple[Array, Floats]:
        left, right = (self.gallery.moved(torch.from_numpy(each)).double().numpy() for each in (queries, places))
        dot: Floats = np.einsum("ij,ij->i", left, right)
        if self.gallery.distance == "cosine":
            scale = self.gallery.scale.numpy()
            # The query's own factor only has to be a power of two, which changes no order and prevents overflow.
            short = np.ldexp(dot, np.frexp(scale[queries])[1]).astype(scale.dtype)
            c: Floats = dot * scale[queries].astype(np.float64) * scale[places].astype(np.float64)
            return short * scale[places], c
        half = self.gallery.shift.numpy()
        c = (dot - half[queries].astype(np.float64) - half[places].astype(np.float64)) * self.unit**2
        return dot.astype(half.dtype) - half[places], c


def mutual(gallery: Gallery) -> Mutual:
    """The factors of c and the bound of its error.

    A sum of d products has an error of at most d u sum |x_k y_k|, in any order; u is the unit roundoff. 32 u is for
    the rounding of factors, norms and thresholds (17 u by count). In float64 the exact pairs round like the product.
    """
    u = torch.finfo(gallery.dtype).eps / 2
    steps = gallery.rows.shape[1] + 32
    wide = 3 if gallery.dtype == torch.float64 else 1
    if gallery.distance == "cosine":
        return Mutual(gallery, 1.0, wide * steps * u)
    longest = (2 * gallery.shift.max().double()).sqrt()
    unit = 2.0 ** -max(int(torch.frexp(longest).exponent), -60)
    return Mutual(gallery, unit, 2 * wide * steps * u)
