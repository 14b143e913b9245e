"""Turn autocast off where a loss must be computed in full precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context in which autocast is off.

    If autocast is off already, the context does nothing. Entering `torch.autocast` takes about 10 us, which is
    noticeable for a small batch.
    """
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()
