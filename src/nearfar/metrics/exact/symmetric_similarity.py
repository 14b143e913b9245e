"""A symmetric similarity c: one value c(i, j) serves both the ranking of query i and the ranking of query j.

cosine     c(i, j) = x_i.x_j / (|x_i| |x_j|)                         = s(i, j) / |x_i|
euclidean  c(i, j) = x_i.x_j - |x_i|^2 / 2 - |x_j|^2 / 2              = s(i, j) - |x_i|^2 / 2

Here s is the similarity of `nearfar.metrics.similarity`. For a given query i, c and s give the same order of the
gallery. A matrix product computes c with a rounding error of at most `error_bound`. If this error leaves the order of
two samples undecided, `compute_pairs` computes s for single pairs.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearfar.metrics.similarity import Gallery
from nearfar.validation import Array, Floats, Ints

# pairs to compute at once: two blocks of this many float64 vectors fit in the cache of a core
PAIRS = 128


@dataclass(frozen=True)
class SymmetricSimilarity:
    """A gallery whose similarity matrix c is the product of two factors.

    Attributes:
        gallery: The gallery.
        shrink: For Euclidean distance, a power of two that scales all vectors to a norm of at most 1. Multiplying by it
            does not round. For cosine, it is 1.
        error_bound: Upper bound on the rounding error of c in a matrix product.
    """

    gallery: Gallery
    shrink: float
    error_bound: float

    def left_factor(self, rows: slice) -> Tensor:
        """Return the left factor of the similarities c = left @ right.T for b queries.

        It has the shape [b, d] for cosine and [b, d + 2] for Euclidean distance.
        """
        return self._factor(rows, is_right=False)

    def right_factor(self, rows: slice) -> Tensor:
        """Return the right factor for b gallery samples, with the shape of the left factor."""
        return self._factor(rows, is_right=True)

    def _factor(self, rows: slice, *, is_right: bool) -> Tensor:
        x = self.gallery.centered(rows)
        if self.gallery.distance == "cosine":
            return x.mul(self.gallery.scale[rows, None])
        half = self.gallery.shift[rows, None] * self.shrink**2
        one = torch.ones_like(half)
        return torch.cat([x.mul(self.shrink), *((-one, -half) if is_right else (half, one))], dim=1)

    def compute_pairs(self, queries: Ints, indices: Ints) -> tuple[Array, Floats]:
        """Return the similarities s and c of single pairs (see the module docstring), from float64 dot products.

        s is rounded to the gallery's dtype. The order of summation is the same for every pair, so equal vectors have
        equal similarities.
        """
        s, c = np.empty(len(queries), dtype=self.gallery.scale.numpy().dtype), np.empty(len(queries))
        for start in range(0, len(queries), PAIRS):
            part = slice(start, start + PAIRS)
            s[part], c[part] = self._compute_part(queries[part], indices[part])
        return s, c

    def _compute_part(self, queries: Ints, indices: Ints) -> tuple[Array, Floats]:
        left, right = (self.gallery.centered(torch.from_numpy(rows)).double().numpy() for rows in (queries, indices))
        dot: Floats = np.einsum("ij,ij->i", left, right)
        if self.gallery.distance == "cosine":
            scale = self.gallery.scale.numpy()
            # multiplying a query by a power of two does not change its ranking; this factor prevents overflow
            scaled = np.ldexp(dot, np.frexp(scale[queries])[1]).astype(scale.dtype)
            c: Floats = dot * scale[queries].astype(np.float64) * scale[indices].astype(np.float64)
            return scaled * scale[indices], c
        half = self.gallery.shift.numpy()
        c = (dot - half[queries].astype(np.float64) - half[indices].astype(np.float64)) * self.shrink**2
        return dot.astype(half.dtype) - half[indices], c


def make_symmetric(gallery: Gallery) -> SymmetricSimilarity:
    """Return the symmetric similarity of a gallery, with a bound on its rounding error.

    In any order of summation, the sum of d products x_k y_k has an error of at most d u T, where u is the unit roundoff
    and T = sum |x_k y_k|. T is at most 1 for cosine and 2 for Euclidean distance. The bound uses d + 32 in place
    of d, to cover the rounding of factors, norms and thresholds (at most 17 u). For float64, the bound is tripled,
    because the results of `compute_pairs` then have rounding errors of the same size.
    """
    u = torch.finfo(gallery.dtype).eps / 2
    terms = gallery.rows.shape[1] + 32
    factor = 3 if gallery.dtype == torch.float64 else 1
    if gallery.distance == "cosine":
        return SymmetricSimilarity(gallery, 1.0, factor * terms * u)
    longest = (2 * gallery.shift.max().double()).sqrt()
    shrink = 2.0 ** -max(int(torch.frexp(longest).exponent), -60)
    return SymmetricSimilarity(gallery, shrink, 2 * factor * terms * u)
