"""A network too large for one device: each rank keeps its part of every parameter (torch's FSDP2).

Parameters come together block by block when they are needed and go apart again; gradients are summed into the parts, so
the optimizer's moments are split as well. Memory of parameters, gradients and moments falls by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from nearfar.config.schema import Config
from nearfar.errors import NearfarError
from nearfar.models import Embedder
from nearfar.training.distributed import process_group


def shard_network(config: Config, embedder: Embedder) -> None:
    """Split the embedder's parameters over the ranks, in place, if the configuration says so."""
    if not config.shard_network or process_group.world_size() == 1:
        return
    untested = {
        "ema": config.ema > 0,
        "projection.weight": config.projection.weight > 0,
        "optimizer.clip_norm": config.optimizer.clip_norm is not None,
        "schedule.warm_up_epochs": config.schedule.warm_up_epochs > 0,
        "model.freeze_backbone": config.model.freeze_backbone,
        "autocast=fp16": config.autocast == "fp16",
        "compile": config.compile,
    }
    for name, wanted in untested.items():
        if wanted:
            raise NearfarError(f"shard_network does not go with {name}: leave one of them out")
    embedder.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP2 splits no other layout
    mesh = init_device_mesh(next(embedder.parameters()).device.type, (process_group.world_size(),))
    for block in _blocks(embedder.backbone):
        fully_shard(block, mesh=mesh)
    fully_shard(embedder, mesh=mesh)
    for part in embedder.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)  # a sum over ranks, see `ranks`, not their mean


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Children with parameters; of a list or a sequence, its own."""
    for child in module.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from _blocks(child)
        elif next(child.parameters(), None) is not None:
            yield child


def whole(tree: Any) -> Any:
    """A tree of dicts and lists with every split tensor whole; every rank must ask."""
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [whole(value) for value in tree]
    return tree.full_tensor() if isinstance(tree, DTensor) else tree


def split_as(tensor: Tensor, example: Tensor) -> Tensor:
    """The tensor split as the example is, if it is and has as many numbers."""
    if not isinstance(example, DTensor) or tensor.shape != example.shape:
        return tensor
    return distribute_tensor(tensor.to(example.device).contiguous(), example.device_mesh, example.placements)


def split_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer keeps for its parameters, split as they are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = {
        place: {key: split_as(value, parameters[place]) for key, value in values.items()}
        for place, values in state["state"].items()
    }
    return state | {"state": kept}
