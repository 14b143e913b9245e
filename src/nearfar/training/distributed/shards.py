"""Save and load a loss with sharded proxies. A checkpoint has all proxies, so any number of processes can load it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.proxies.sharded import ShardedProxies

State = dict[str, Any]


def collect_states(loss: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[State, State]:
    """Return the state dicts of the loss and the optimizer.

    If the proxies are sharded, every process must call this. The state on the main process then has all proxies.
    """
    if not isinstance(loss, ShardedProxies):
        return loss.state_dict(), optimizer.state_dict()
    inner, moments = loss.loss.state_dict(), optimizer.state_dict()
    complete = inner | {"proxies": loss.gather_classes(inner["proxies"])}
    return complete, _map_moments(loss, optimizer, moments, loss.gather_classes)


def load_states(loss: nn.Module, optimizer: torch.optim.Optimizer, loss_state: State, optimizer_state: State) -> None:
    """Load the states that `collect_states` returned on the main process."""
    if isinstance(loss, ShardedProxies):
        loss.loss.load_state_dict(loss_state | {"proxies": loss.select_classes(loss_state["proxies"])})
        optimizer_state = _map_moments(loss, optimizer, optimizer_state, lambda full: loss.select_classes(full).clone())
    else:
        loss.load_state_dict(loss_state)
    optimizer.load_state_dict(match_layout(optimizer_state, optimizer))


def match_layout(state: State, optimizer: torch.optim.Optimizer) -> State:
    """Convert the state of an optimizer to the memory layout of its parameters, which fused optimizers require."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def copy_like(value: Tensor, p: Tensor) -> Tensor:
        if value.shape != p.shape or value.stride() == p.stride():
            return value
        return torch.empty_like(p, dtype=value.dtype, device=value.device).copy_(value)

    matched = {
        i: {key: copy_like(value, parameters[i]) for key, value in values.items()}
        for i, values in state["state"].items()
    }
    return state | {"state": matched}


def _map_moments(
    loss: ShardedProxies, optimizer: torch.optim.Optimizer, state: State, change: Callable[[Tensor], Tensor]
) -> State:
    """Return the state of the optimizer, with `change` applied to the moments of the proxies."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    index = next(i for i, p in enumerate(parameters) if p is loss.loss.proxies)
    moments = state["state"].get(index, {})
    moments = {key: change(value) if value.ndim else value for key, value in moments.items()}
    return state | {"state": state["state"] | ({index: moments} if moments else {})}
