"""A few entries of a matrix: drawing them, and differentiating them by a sparse product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def entries(products: Tensor, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
    """x_i . y_j of the entries `index` of the flattened matrix of products, which is constant.

    The gradient takes a sparse matrix product in place of a dense one, which is the larger part of the time of a loss
    that chooses few pairs.
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
        place = torch.stack([index // len(y), index % len(y)])
        weights = torch.sparse_coo_tensor(place, g, (len(x), len(y)), check_invariants=False)
        return None, torch.sparse.mm(weights, y), torch.sparse.mm(weights.t(), x), None


@torch.library.custom_op("nearfar::draw", mutates_args=())
def draw(p: Tensor, n: int, seed: Tensor) -> Tensor:
    """n indices into the flattened p, drawn with replacement in proportion to it; 0 if all of p is 0.

    An operator of its own, because torch.compile traces no generator.
    """
    generator = torch.Generator(p.device).manual_seed(int(seed))
    steps = p.flatten().cumsum(0, dtype=torch.float64)
    u = torch.rand(n, generator=generator, dtype=torch.float64, device=p.device) * steps[-1]
    # the first step beyond u is never an entry of p = 0, which is as high as the one before; rounding may reach the end
    last = torch.searchsorted(steps, steps[-1])
    return torch.searchsorted(steps, u, right=True).clamp_max(last)


@draw.register_fake
def _(p: Tensor, n: int, seed: Tensor) -> Tensor:
    return p.new_empty(n, dtype=torch.int64)
