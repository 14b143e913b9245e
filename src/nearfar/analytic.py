"""Functions that return their own gradient: opaque operators for what autograd would do slowly.

Some losses run over the positives of each anchor, a loop whose length depends on the labels. As an operator with an
analytic gradient such a loop reuses its buffers, keeps one [A, R] matrix for the backward pass, and torch.compile
takes it as a single node, so that the graph around it stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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

        def backward(ctx: Any, g: Tensor | None, g_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
            if g_gradient is not None:
                raise RuntimeError(f"nearfar::{name} has no second derivative")
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
