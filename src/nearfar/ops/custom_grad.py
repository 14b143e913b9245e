"""Functions that return their own gradient: opaque operators for what autograd would do slowly.

Some losses run over the positives of each anchor, a loop whose length depends on the labels. As an operator with an
analytic gradient such a loop reuses its buffers, keeps one [A, R] matrix for the backward pass, and torch.compile
takes it as a single node, so that the graph around it stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def first_derivative_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that refuses to be differentiated itself, at once.

    Its saved tensors stand for themselves, not for what they were computed from, so a second derivative would be wrong.
    (torch's once_differentiable only says so if the graph is walked through it, which autograd.grad may not do.)
    """

    @wraps(backward)
    def checked(*args: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("nearfar's losses have no second derivative: call backward without create_graph=True")
        return backward(*args)

    return checked


def analytic(name: str) -> Callable[[Callable[..., tuple[Tensor, Tensor]]], Callable[..., Tensor]]:
    """Make f(x, ...) -> (value, dvalue/dx) an operator `nearfar::name` that returns the value and differentiates by x.

    f is called without autograd; its first argument is the only one with a gradient; value is a 0-d tensor. A second
    derivative is an error, not a silent zero.
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
