"""Train a network that does not fit on one device: each process stores a part of every parameter (PyTorch FSDP2).

Parameters are gathered block by block when they are needed. Each process receives the summed gradients of its parts, so
the moments of the optimizer are sharded as well. With N processes, each process needs 1 / N of the memory for
parameters, gradients and moments.
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
    """Shard the parameters of the embedder over the processes, in place, if `shard_network` is set."""
    if not config.shard_network or process_group.world_size() == 1:
        return
    unsupported = {
        "ema": config.ema > 0,
        "projection.weight": config.projection.weight > 0,
        "optimizer.clip_norm": config.optimizer.clip_norm is not None,
        "schedule.warm_up_epochs": config.schedule.warm_up_epochs > 0,
        "model.freeze_backbone": config.model.freeze_backbone,
        "model.train_from": config.model.train_from is not None,
        "model.lora": config.model.lora is not None,
        "autocast=fp16": config.autocast == "fp16",
        "compile": config.compile,
    }
    for name, is_set in unsupported.items():
        if is_set:
            raise NearfarError(f"shard_network=true does not support {name}: remove one of the two settings")
    embedder.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP2 supports only this layout
    mesh = init_device_mesh(next(embedder.parameters()).device.type, (process_group.world_size(),))
    for block in _blocks(embedder.backbone):
        fully_shard(block, mesh=mesh)
    fully_shard(embedder, mesh=mesh)
    for module in embedder.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # sum over the processes instead of averaging, see `process_group`


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the child modules that have parameters.

    A child that is an nn.Sequential or nn.ModuleList is replaced by its own children, recursively.
    """
    for child in module.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from _blocks(child)
        elif next(child.parameters(), None) is not None:
            yield child


def unshard(tree: Any) -> Any:
    """Return a tree of dicts and lists with all its sharded tensors gathered. Every process must call this."""
    if isinstance(tree, dict):
        return {key: unshard(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [unshard(value) for value in tree]
    return tree.full_tensor() if isinstance(tree, DTensor) else tree


def shard_like(tensor: Tensor, example: Tensor) -> Tensor:
    """Return `tensor`, sharded like `example`. It is unchanged if `example` is not sharded or has another shape."""
    if not isinstance(example, DTensor) or tensor.shape != example.shape:
        return tensor
    return distribute_tensor(tensor.to(example.device).contiguous(), example.device_mesh, example.placements)


def shard_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer, sharded in the same way as the parameters of the optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    sharded = {
        i: {key: shard_like(value, parameters[i]) for key, value in values.items()}
        for i, values in state["state"].items()
    }
    return state | {"state": sharded}
