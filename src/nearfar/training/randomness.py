"""The generators that training draws from: their state, and putting it back."""

from __future__ import annotations

import torch
from torch import Tensor


def random_state() -> dict[str, Tensor]:
    """The generators that training draws from."""
    state = {"cpu": torch.get_rng_state()}
    return state | {f"cuda:{i}": each for i, each in enumerate(torch.cuda.get_rng_state_all())}


def set_random_state(state: dict[str, Tensor]) -> None:
    """Put the generators back; those of devices that are not here are left alone."""
    torch.set_rng_state(state["cpu"])
    for i in range(torch.cuda.device_count()):
        if f"cuda:{i}" in state:
            torch.cuda.set_rng_state(state[f"cuda:{i}"], i)
