"""Save and restore the state of the random generators of training."""

from __future__ import annotations

import torch
from torch import Tensor


def random_state() -> dict[str, Tensor]:
    """Return the state of torch's random number generators, of the CPU and of the GPU of this process.

    Each process has one GPU, and shared draws are the same on all of them. So the state of the main process is right
    for every process, whatever the number of its GPU.
    """
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {})  # type: ignore[no-untyped-call]


def set_random_state(state: dict[str, Tensor]) -> None:
    """Restore a state that `random_state` returned. The state of a GPU is ignored on a machine without one."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
