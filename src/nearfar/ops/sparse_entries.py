"""Single entries of a matrix: sampling them, and differentiating them by a sparse product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def entries(products: Tensor, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """Return entries of the matrix x_i . y_j whose gradient is a sparse matrix product.

    The dense product would take most of the time of a loss that selects few pairs.

    Args:
        products: The matrix of products [A, R], detached.
        x: The vectors [A, d].
        y: The vectors [R, d].
        index: Indices into the flattened matrix.
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
    """Draw n indices into the flattened p with replacement, in proportion to p; index 0 if all of p is 0.

    It is an operator because torch.compile cannot trace a generator.
    """
    generator = torch.Generator(p.device).manual_seed(int(seed))
    steps = p.flatten().cumsum(0, dtype=torch.float64)
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=p.device) * steps[-1]
    # The first cumulative sum above u never belongs to an entry with p = 0.
    # Rounding can make u equal to the last sum, so clamp.
    last = torch.searchsorted(steps, steps[-1])
    return torch.searchsorted(steps, u, right=True).clamp_max(last)


@draw.register_fake
def _(p: Tensor, n: int, seed: Tensor) -> Tensor:
    return p.new_empty(n, dtype=torch.int64)
