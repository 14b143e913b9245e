"""Functions that return their own gradient: opaque operators for what autograd would do slowly.

Some losses loop over the positives of each anchor, and the length of the loop depends on the labels. As an operator
with an analytic gradient, such a loop reuses its buffers and keeps one [A, R] matrix for the backward pass.
torch.compile sees a single node and does not break the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def first_derivative_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward pass so that differentiating it raises an error immediately.

    Its saved tensors have no graph to their inputs, so a second derivative would be wrong. (torch's once_differentiable
    raises only if the graph is traversed through it, which autograd.grad may not do.)
    """

    @wraps(backward)
    def checked(*args: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "nearfar's losses do not support second derivatives: call backward without create_graph=True"
            )
        return backward(*args)

    return checked


def analytic(name: str) -> Callable[[Callable[..., tuple[Tensor, Tensor]]], Callable[..., Tensor]]:
    """Return a decorator that turns f(x, ...) -> (value, dvalue/dx) into an operator that returns the value.

    f runs without autograd. Only its first argument has a gradient, and the value is a scalar tensor. A second
    derivative is an error, not a silent zero.

    Args:
        name: The operator is called `nearfar::name`.
    """

    def decorate(f: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
        op = torch.library.custom_op(f"nearfar::{name}", f, mutates_args=())

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
            value: Tensor = op(*args)[0]
            return value

        call.__doc__ = f.__doc__
        call.__name__ = f.__name__
        return call

    return decorate
