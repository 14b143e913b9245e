"""Decide whether code may read the values of a tensor on the host.

On a GPU, reading a value makes the host wait until the GPU has finished all work before it, and the GPU then idles
until the host has queued new work. So losses read values only if the tensor is on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_VALIDATE: ContextVar[bool] = ContextVar("validate", default=False)


def is_on_host(x: Tensor) -> bool:
    """Return whether values of x can be read at no cost: x is on the CPU, and torch.compile is not tracing.

    Shapes may depend on values only if this is true.
    """
    return not torch.compiler.is_compiling() and x.device.type == "cpu"


def should_check_values(x: Tensor) -> bool:
    """Return whether to check the values of x: if it is on the CPU, or inside `checked_values`, unless compiling."""
    return not torch.compiler.is_compiling() and (x.device.type == "cpu" or _VALIDATE.get())


@contextmanager
def checked_values() -> Iterator[None]:
    """Check the values of tensors on every device inside the block. The host waits for the GPU at each check."""
    token = _VALIDATE.set(True)
    try:
        yield
    finally:
        _VALIDATE.reset(token)
