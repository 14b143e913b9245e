"""Unit vectors, and matrices of cosines, dot products and distances between two sets of vectors.

Every pair loss starts from one of these matrices and spends most of its time computing it. These functions differ from
the plain torch expressions in two ways:
- If a set is compared with itself, the backward pass needs one matrix product instead of two: for S = X X^T and
  G = dL/dS, it computes dL/dX = (G + G^T) X.
- Gradients are finite everywhere. The norm of a zero vector and the distance between two equal vectors are not
  differentiable; their gradient is set to 0 (a subgradient) instead of 0/0.

In the shapes, A is the number of vectors x, R is the number of vectors y, and d is their dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nearfar.ops.custom_grad import first_derivative_only
from nearfar.ops.precision import without_autocast


def unit(x: Tensor) -> Tensor:
    """Divide each vector of x [N, d] by its norm. A zero vector stays zero, and its gradient is zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    result: Tensor = _Unit.apply(x)  # type: ignore[no-untyped-call]
    return result


def dot_matrix(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Compute the dot products x_i . y_j [A, R]. By default y is x."""
    result: Tensor = _Gram.apply(x) if y is None or y is x else _Dots.apply(x, y)  # type: ignore[no-untyped-call]
    return result


def cosine_matrix(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Compute the cosines S_ij = x_i . y_j / (||x_i|| ||y_j||) [A, R]. By default y is x."""
    if y is None:
        result: Tensor = _CosineGram.apply(x)  # type: ignore[no-untyped-call]
        return result
    return dot_matrix(unit(x), unit(y))


def distance_matrix(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Compute the distances D_ij = ||x_i - y_j|| [A, R] with one matrix product. By default y is x.

    D^2 is computed as ||x_i||^2 + ||y_j||^2 - 2 x_i . y_j. If a distance is much smaller than the norms, cancellation
    leaves an absolute error of about the norm times the square root of the machine epsilon (3e-4 for unit vectors in
    float32).

    >>> distance_matrix(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[0., 5.],
            [5., 0.]])
    """
    x_sq = (x * x).sum(1)
    y_sq = x_sq if y is None else (y * y).sum(1)
    return safe_sqrt(x_sq[:, None] + y_sq[None, :] - 2 * dot_matrix(x, y))


def negative_distance_matrix(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Compute -||unit(x_i) - unit(y_j)|| = -sqrt(2 - 2 S_ij) [A, R], where S are cosines. By default y is x."""
    result: Tensor = _Chord.apply(cosine_matrix(x, y), True)  # type: ignore[no-untyped-call]
    return result


def chord(cosines: Tensor) -> Tensor:
    """Compute the distances sqrt(2 - 2 S) of unit vectors from their cosines S, elementwise."""
    result: Tensor = _Chord.apply(cosines, False)  # type: ignore[no-untyped-call]
    return result


def safe_sqrt(x: Tensor) -> Tensor:
    """Compute sqrt(max(x, 0)) elementwise. The gradient is 0 where the result is 0."""
    result: Tensor = _SafeSqrt.apply(x)  # type: ignore[no-untyped-call]
    return result


def reciprocal_norms(x: Tensor) -> Tensor:
    """Compute 1 / ||x_i|| over the last dimension, which is kept with size 1.

    The result is 0 for a zero vector, and for a vector whose norm is too small to be a normal number of the dtype.
    """
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # norms of at most `tiny` become infinite, and their reciprocals 0
    inverse: Tensor = torch.threshold_(norm, torch.finfo(x.dtype).tiny, torch.inf).reciprocal_()
    return inverse


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = reciprocal_norms(x)
        u = x * scale
        ctx.save_for_backward(u, scale)
        return u

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> Tensor:
        u, scale = ctx.saved_tensors
        result: Tensor = (g - u * (g * u).sum(1, keepdim=True)) * scale
        return result


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        # Copying the transpose and adding g in place is five times faster than g + g.T for 2048 vectors.
        # backward() may be called under autocast, which would compute the product in half precision.
        with without_autocast(x.device.type):
            result: Tensor = g.T.clone(memory_format=torch.contiguous_format).add_(g) @ x
        return result


class _Dots(torch.autograd.Function):
    """The dot products of two sets of vectors. Unlike those of `x @ y.T`, the gradients are in full precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x @ y.T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        with without_autocast(x.device.type):
            return g @ y if ctx.needs_input_grad[0] else None, g.T @ x if ctx.needs_input_grad[1] else None


class _CosineGram(torch.autograd.Function):
    """The matrix of cosines of a set of vectors with itself, `_Gram` applied to the result of `_Unit`.

    It is a single operation, because for small batches the overhead of each operation exceeds its arithmetic.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = reciprocal_norms(x)
        u = x * scale
        ctx.save_for_backward(u, scale)
        return u @ u.T

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> Tensor:
        u, scale = ctx.saved_tensors
        with without_autocast(u.device.type):
            by_unit: Tensor = g.T.clone(memory_format=torch.contiguous_format).add_(g) @ u
        along = (by_unit * u).sum(1, keepdim=True)
        return by_unit.addcmul_(u, along, value=-1).mul_(scale)


class _SafeSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root = x.clamp_min(0).sqrt_()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return (0.5 * g).div_(root).masked_fill_(root == 0, 0.0)


class _Chord(torch.autograd.Function):
    """The function `chord`, sqrt(2 - 2 S), or its negative, and its gradient, with few passes over the matrix."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, negative: bool) -> Tensor:
        d = torch.rsub(s, 2, alpha=2).clamp_min_(0).sqrt_()
        ctx.negative = negative
        ctx.save_for_backward(d)
        return -d if negative else d

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (d,) = ctx.saved_tensors
        slope = (g / d).masked_fill_(d == 0, 0.0)
        return slope if ctx.negative else slope.neg_(), None
