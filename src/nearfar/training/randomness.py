"""Save and restore the state of the random generators of training."""

from __future__ import annotations

import torch
from torch import Tensor


def random_state() -> dict[str, Tensor]:
    """Return the state of torch's random number generators, of the CPU and of all GPUs."""
    state = {"cpu": torch.get_rng_state()}
    return state | {f"cuda:{i}": generator for i, generator in enumerate(torch.cuda.get_rng_state_all())}


def set_random_state(state: dict[str, Tensor]) -> None:
    """Restore a state that `random_state` returned. States of GPUs that this machine does not have are ignored."""
    torch.set_rng_state(state["cpu"])
    for i in range(torch.cuda.device_count()):
        if f"cuda:{i}" in state:
            torch.cuda.set_rng_state(state[f"cuda:{i}"], i)
