"""Operators with hand-written gradients, for losses that autograd would differentiate slowly.

Some losses loop over the positives of each anchor, and the number of iterations depends on the labels. Autograd would
save the intermediate results of every iteration. An operator that computes its own gradient reuses its buffers and
saves a single matrix of shape [anchors, references] for the backward pass. torch.compile treats the operator as one
opaque node, so the loop does not cause a graph break.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def first_derivative_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward pass so that differentiating it raises an error immediately.

    The tensors that the backward pass reads are detached from the inputs, so a second derivative would be wrong.
    PyTorch's `once_differentiable` is not enough: it raises only when the second backward pass reaches this function,
    and `autograd.grad` may skip this function.
    """

    @wraps(backward)
    def checked(*args: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "nearfar's losses do not support second derivatives: call backward without create_graph=True"
            )
        return backward(*args)

    return checked


class _Eager(torch.autograd.Function):
    """The operator that `analytic` creates, without the overhead of torch.library. It is used in eager mode."""

    @staticmethod
    def forward(ctx: Any, f: Callable[..., tuple[Tensor, Tensor]], x: Tensor, *others: Any) -> Tensor:
        value, gradient = f(x, *others)
        ctx.others = len(others)
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (None, g * gradient, *[None] * ctx.others)


def analytic(name: str) -> Callable[[Callable[..., tuple[Tensor, Tensor]]], Callable[..., Tensor]]:
    """Return a decorator that turns f(x, ...) -> (value, dvalue/dx) into a differentiable operator that returns value.

    f itself runs without autograd, and its value must be a scalar. f may copy values from a GPU to the host, such as
    the number of positives, so the operator is excluded from CUDA graphs. Only the first argument, x, gets a gradient.
    Asking for a second derivative raises an error.

    Args:
        name: Name of the operator in the `nearfar::` namespace of torch.library.
    """

    def decorate(f: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
        op = torch.library.custom_op(f"nearfar::{name}", f, mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))

        def fake(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
            return x.new_empty(()), torch.empty_like(x)

        def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            ctx.set_materialize_grads(False)
            ctx.others = len(inputs) - 1
            ctx.save_for_backward(output[1])

        @first_derivative_only
        def backward(ctx: Any, g: Tensor | None, g_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
            (gradient,) = ctx.saved_tensors
            return (None if g is None else g * gradient, *[None] * ctx.others)

        op.register_fake(fake)
        op.register_autograd(backward, setup_context=setup)

        def call(*args: Any) -> Tensor:
            # outside of torch.compile, calling the operator would take about 100 us longer
            if torch.compiler.is_compiling():
                compiled: Tensor = op(*args)[0]
                return compiled
            value: Tensor = _Eager.apply(f, *args)  # type: ignore[no-untyped-call]
            return value

        call.__doc__ = f.__doc__
        call.__name__ = f.__name__
        return call

    return decorate
