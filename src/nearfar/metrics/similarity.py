"""Blocks of similarities of queries to the whole gallery, without a copy of the gallery.

cosine     s(q, g) = q.g / |g|            the query's own norm does not change its ranking and is left out
euclidean  s(q, g) = q.g - |g|^2 / 2      = (|q|^2 - |q - g|^2) / 2, so larger is nearer

The gallery stays where it is: float32 and float64 rows enter the product as they are and the norms are
applied to the result. Half precision rows are widened in chunks for every block. Rows of length (near) zero
have no direction: their cosine to everything is 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 2048
TINY, HUGE = 1e-30, 1e18
DISTANCES = ("cosine", "euclidean")


@dataclass(frozen=True)
class Gallery:
    """The gallery and what turns a dot product with one of its rows into a similarity."""

    rows: Tensor
    distance: str
    dtype: torch.dtype
    scale: Tensor
    shift: Tensor
    center: Tensor | None

    def similarities(self, queries: Tensor, out: Tensor) -> Tensor:
        """Fill `out` [b, N] with the similarities of `queries` [b, d]."""
        left = queries.to(self.dtype)
        if self.distance == "cosine":
            # A power of two keeps every product exact, so equal similarities stay equal, and prevents overflow.
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

    def moved(self, places: slice | Tensor) -> Tensor:
        """Some rows as they enter the product: in `dtype`, moved to the center."""
        rows = self.rows[places] if isinstance(places, slice) else self.rows.index_select(0, places)
        rows = rows.to(self.dtype)
        return rows if self.center is None else rows - self.center


def gallery(rows: Tensor, squares: Tensor, distance: str) -> Gallery:
    """Prepare a gallery of rows with these squared lengths; if far from the origin, Euclidean ones get a center."""
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    center = None
    if distance == "euclidean":
        mean = sum_rows(rows) / len(rows)
        # Far from the origin q.g and |g|^2 / 2 nearly cancel. Only then, because moving rows to the mean rounds them.
        if len(rows) > 1 and mean.square().sum() > 0.99 * squares.mean():
            center = mean.to(dtype)
            squares = squared_lengths(rows, center)
    length = squares.sqrt()
    scale = torch.where(length > TINY, 1 / length.clamp_min(TINY), 0)
    return Gallery(rows, distance, dtype, scale.to(dtype), (squares / 2).to(dtype), center)


def squared_lengths(rows: Tensor, center: Tensor | None = None) -> Tensor:
    """|row - center|^2 of every row, in float64, chunk by chunk (no copy of the rows)."""
    parts = (rows[start : start + CHUNK].double() for start in range(0, len(rows), CHUNK))
    return torch.cat([(part if center is None else part - center.double()).square().sum(1) for part in parts])


def sum_rows(rows: Tensor) -> Tensor:
    """The sum of the rows in float64, chunk by chunk."""
    parts = [rows[start : start + CHUNK].sum(0, dtype=torch.float64) for start in range(0, len(rows), CHUNK)]
    return torch.stack(parts).sum(0)


def checked_squared_lengths(rows: Tensor, name: str) -> Tensor:
    """|row|^2 in float64; an error if a row holds NaN or infinity, or is too long for float32 arithmetic."""
    squares = squared_lengths(rows)
    bad = torch.nonzero(~torch.isfinite(squares)).flatten()
    if len(bad):
        raise ValueError(
            f"{name} has NaN or infinity in {len(bad)} of {len(rows)} rows, the first is row {int(bad[0])}"
        )
    longest = float(squares.max().sqrt())
    if longest > HUGE:
        raise ValueError(f"{name} has a row of length {longest:.3g}; rescale lengths above {HUGE:g} first")
    return squares
