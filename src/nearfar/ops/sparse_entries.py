"""Random entries of a matrix, and selected dot products whose gradient is computed with sparse matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def entries(products: Tensor, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """Return selected entries of the matrix of dot products x_i . y_j.

    The backward pass uses sparse matrix products. With dense ones, a loss that selects few pairs would spend most of
    its time in the backward pass.

    Args:
        products: The complete matrix of dot products [A, R], detached.
        x: The vectors [A, d].
        y: The vectors [R, d].
        index: Indices [n] of the selected entries in the flattened matrix.

    Returns:
        The selected entries [n]. Their gradient flows to x and y.
    """
    result: Tensor = _Entries.apply(products, x, y, index)  # type: ignore[no-untyped-call]
    return result


class _Entries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Tensor, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, index)
        return products.flatten().gather(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor, Tensor, None]:
        x, y, index = ctx.saved_tensors
        position = torch.stack([index // len(y), index % len(y)])
        weights = torch.sparse_coo_tensor(position, g, (len(x), len(y)), check_invariants=False)
        return None, torch.sparse.mm(weights, y), torch.sparse.mm(weights.t(), x), None


@torch.library.custom_op("nearfar::draw", mutates_args=())
def draw(p: Tensor, n: int, seed: Tensor) -> Tensor:
    """Draw n indices into the flattened p with replacement, with probabilities proportional to p.

    If all of p is 0, every index is 0. This is a custom operator because torch.compile cannot trace a torch.Generator.
    """
    steps = p.flatten().cumsum(0, dtype=torch.float64)
    if p.device.type == "cpu":
        generator = torch.Generator().manual_seed(int(seed))
        u = torch.rand(n, generator=generator, dtype=torch.float64)
    else:
        u = hashed_uniform(n, seed)
    u = u * steps[-1]
    # Each draw is the first index whose cumulative sum is above u, so an entry with p = 0 is never drawn.
    # Rounding can make u equal to the last sum. Then no sum is above u, so the index is clamped.
    last = torch.searchsorted(steps, steps[-1])
    return torch.searchsorted(steps, u, right=True).clamp_max(last)


def hashed_uniform(n: int, seed: Tensor) -> Tensor:
    """Return n float64 numbers, uniform in [0, 1), that are computed from a seed. The seed may be on a GPU.

    A torch.Generator needs the seed on the host, so the host would wait for the GPU. Instead, the i-th number is the
    splitmix64 hash (Steele, Lea and Flood, OOPSLA 2014) of the i-th number of an arithmetic sequence, whose first
    number is a multiple of the seed.
    """
    z = torch.arange(n, device=seed.device) * _signed(0x9E3779B97F4A7C15) + seed.to(torch.int64) * 0x5851F42D4C957F2D
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ _shift_right(z, shift)) * _signed(factor)
    z = z ^ _shift_right(z, 31)
    return _shift_right(z, 11).double() * 2.0**-53


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift 64-bit integers to the right and fill with zeros; torch fills with the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Return the signed 64-bit integer with the same bits as an unsigned one."""
    return value - (1 << 64) if value >= 1 << 63 else value


@draw.register_fake
def _(p: Tensor, n: int, seed: Tensor) -> Tensor:
    return p.new_empty(n, dtype=torch.int64)
