"""The state of a loss whose proxies are split over ranks, whole: as one process writes it, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.proxies.sharded import ShardedProxies

State = dict[str, Any]


def states(loss: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[State, State]:
    """Of loss and optimizer; of split proxies, every rank must ask, and rank 0 gets the whole."""
    ours, theirs = loss.state_dict(), optimizer.state_dict()
    if not isinstance(loss, ShardedProxies):
        return ours, theirs
    inner = loss.loss.state_dict()
    return inner | {"proxies": loss.whole_of(inner["proxies"])}, _changed(loss, optimizer, theirs, loss.whole_of)


def load_states(loss: nn.Module, optimizer: torch.optim.Optimizer, ours: State, theirs: State) -> None:
    """Go on from what `states` gave on rank 0."""
    if isinstance(loss, ShardedProxies):
        loss.loss.load_state_dict(ours | {"proxies": loss.part_of(ours["proxies"])})
        theirs = _changed(loss, optimizer, theirs, lambda whole: loss.part_of(whole).clone())
    else:
        loss.load_state_dict(ours)
    optimizer.load_state_dict(laid_out(theirs, optimizer))


def laid_out(state: State, optimizer: torch.optim.Optimizer) -> State:
    """The optimizer's state in the layout of its parameters, which a fused optimizer takes for granted."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def like(value: Tensor, p: Tensor) -> Tensor:
        if value.shape != p.shape or value.stride() == p.stride():
            return value
        return torch.empty_like(p, dtype=value.dtype, device=value.device).copy_(value)

    kept = {i: {key: like(value, parameters[i]) for key, value in each.items()} for i, each in state["state"].items()}
    return state | {"state": kept}


def _changed(
    loss: ShardedProxies, optimizer: torch.optim.Optimizer, state: State, change: Callable[[Tensor], Tensor]
) -> State:
    """The optimizer's state with what it keeps for each proxy (moments) changed."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    place = next(i for i, p in enumerate(parameters) if p is loss.loss.proxies)
    kept = state["state"].get(place, {})
    kept = {key: change(value) if value.ndim else value for key, value in kept.items()}
    return state | {"state": state["state"] | ({place: kept} if kept else {})}
