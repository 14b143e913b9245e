"""Decide whether the host may read the values of a tensor.

Reading a value of a GPU tensor makes the host wait until the GPU has finished all work queued before the read. The GPU
then idles until the host has queued new work. Therefore, by default, losses read values only of tensors on the CPU (see
`checked_values`).
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

    Code may choose tensor shapes based on values of x only if this is true.
    """
    return not torch.compiler.is_compiling() and x.device.type == "cpu"


def should_check_values(x: Tensor) -> bool:
    """Return whether to check the values of x.

    Values are never checked while torch.compile is tracing. Otherwise, they are checked if x is on the CPU or the call
    is inside a `checked_values` block.
    """
    return not torch.compiler.is_compiling() and (x.device.type == "cpu" or _VALIDATE.get())


@contextmanager
def checked_values() -> Iterator[None]:
    """Check the values of tensors on any device, not only on the CPU, inside the `with` block.

    Each check of a tensor on a GPU makes the host wait for the GPU.
    """
    token = _VALIDATE.set(True)
    try:
        yield
    finally:
        _VALIDATE.reset(token)
