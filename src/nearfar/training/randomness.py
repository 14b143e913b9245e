"""Save and restore the state of the random generators of training."""

from __future__ import annotations

import torch
from torch import Tensor


def random_state() -> dict[str, Tensor]:
    """Return the state of torch's random number generators, of the CPU and of the GPU of this process.

    Each process uses one GPU, and all processes draw the same shared random numbers. The state of the main process is
    therefore valid on every process, whichever GPU that process uses.
    """
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {})  # type: ignore[no-untyped-call]


def set_random_state(state: dict[str, Tensor]) -> None:
    """Restore a state that `random_state` returned. The state of a GPU is ignored on a machine without one."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
