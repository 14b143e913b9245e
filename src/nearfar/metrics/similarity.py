"""Similarities of a block of queries to the whole gallery, without a copy of the gallery.

cosine     s(q, g) = q.g / |g|            |q| does not change the ranking and is omitted
euclidean  s(q, g) = q.g - |g|^2 / 2      = (|q|^2 - |q - g|^2) / 2, so larger is nearer

Gallery vectors in float32 and float64 enter the matrix product unchanged, and their norms are applied to the result.
Half-precision vectors are converted to float32 chunk by chunk, anew for every block of queries. A zero vector has no
direction: its cosine with any vector is 0. `check_norms` rejects other vectors with a norm of at most 1e-30.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 2048
TINY, HUGE = 1e-30, 1e18
DISTANCES = ("cosine", "euclidean")


@dataclass(frozen=True)
class Gallery:
    """A gallery with the norms that turn dot products into similarities.

    Attributes:
        rows: The vectors [N, d].
        distance: "cosine" or "euclidean".
        dtype: Data type of the similarities, float32 or float64.
        scale: 1 / |g| of each vector g, or 0 if the norm is at most 1e-30. Only used for cosine.
        shift: |g|^2 / 2 of each vector g, after the center is subtracted. Only used for Euclidean distance.
        center: Point to subtract from all gallery and query vectors, or None to subtract nothing.
    """

    rows: Tensor
    distance: str
    dtype: torch.dtype
    scale: Tensor
    shift: Tensor
    center: Tensor | None

    def similarities(self, queries: Tensor, out: Tensor) -> Tensor:
        """Write the similarities of `queries` [b, d] into `out` [b, N], and return `out`."""
        left = queries.to(self.dtype)
        if self.distance == "cosine":
            # Scaling prevents overflow. Scaling by a power of two does not round, so equal similarities stay equal.
            largest = left.abs().amax(1, keepdim=True)
            left = left * torch.ldexp(torch.ones_like(largest), -torch.frexp(largest).exponent.clamp_min(-126))
        elif self.center is not None:
            left = left - self.center
        if self.rows.dtype == self.dtype and self.center is None:
            torch.mm(left, self.rows.T, out=out)
        else:
            for start in range(0, len(self.rows), CHUNK):
                right = self.rows[start : start + CHUNK].to(self.dtype)
                right = right if self.center is None else right - self.center
                torch.mm(left, right.T, out=out[:, start : start + CHUNK])
        return out.mul_(self.scale) if self.distance == "cosine" else out.sub_(self.shift)

    def centered(self, indices: slice | Tensor) -> Tensor:
        """Return the vectors at `indices` as they enter the matrix product: converted to `dtype`, minus the center."""
        rows = self.rows[indices] if isinstance(indices, slice) else self.rows.index_select(0, indices)
        rows = rows.to(self.dtype)
        return rows if self.center is None else rows - self.center


def prepare_gallery(rows: Tensor, squares: Tensor, distance: str) -> Gallery:
    """Create a gallery from vectors and their squared norms.

    For Euclidean distance, `center` is the mean of the vectors if they are much closer to each other than to the
    origin, else None.
    """
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    center = None
    if distance == "euclidean":
        mean = sum_rows(rows) / len(rows)
        # If the vectors are much closer to each other than to the origin, q.g - |g|^2 / 2 is almost the same large
        # number for every g, and rounding hides the differences. Subtracting the mean first prevents this. For other
        # vectors, it would only add rounding errors.
        if len(rows) > 1 and mean.square().sum() > 0.99 * squares.mean():
            center = mean.to(dtype)
            squares = squared_norms(rows, center)
    length = squares.sqrt()
    scale = torch.where(length > TINY, 1 / length.clamp_min(TINY), 0)
    return Gallery(rows, distance, dtype, scale.to(dtype), (squares / 2).to(dtype), center)


def squared_norms(rows: Tensor, center: Tensor | None = None) -> Tensor:
    """Return |row - center|^2 of every row in float64, chunk by chunk, without a copy of the rows."""
    parts = (rows[start : start + CHUNK].double() for start in range(0, len(rows), CHUNK))
    return torch.cat([(part if center is None else part - center.double()).square().sum(1) for part in parts])


def sum_rows(rows: Tensor) -> Tensor:
    """Return the sum of the rows in float64, chunk by chunk."""
    parts = [rows[start : start + CHUNK].sum(0, dtype=torch.float64) for start in range(0, len(rows), CHUNK)]
    return torch.stack(parts).sum(0)


def check_norms(rows: Tensor, name: str) -> Tensor:
    """Check that all vectors are finite, and that their norms are 0, or above TINY and at most HUGE.

    Return the squared norms in float64. `name` is the name of the argument for the error message.
    """
    squares = squared_norms(rows)
    bad = torch.nonzero(~torch.isfinite(squares)).flatten()
    if len(bad):
        raise ValueError(
            f"{name} has NaN or infinity in {len(bad)} of {len(rows)} vectors, first in vector "
            f"{int(bad[0])}: remove these vectors"
        )
    longest = float(squares.max().sqrt())
    if longest > HUGE:
        raise ValueError(f"{name} has a vector of norm {longest:.3g}: rescale the vectors to norms of at most {HUGE:g}")
    # Vectors with a norm of at most TINY get cosine 0 with every vector, which is right only for zero vectors.
    if bool(((squares > 0) & (squares <= TINY**2)).any()):
        shortest = float(squares[squares > 0].min().sqrt())
        raise ValueError(
            f"{name} has a vector of norm {shortest:.3g}, too short to compute its direction: rescale the vectors "
            f"to norms above {TINY:g}"
        )
    return squares
