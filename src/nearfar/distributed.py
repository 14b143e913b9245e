"""Compute the loss over the samples of all processes in your own training loop.

    from nearfar.distributed import gather_embeddings

    embeddings, labels = gather_embeddings(network(images), labels)
    loss(embeddings, labels).backward()

Every process then computes the loss of the whole batch. `loss(network(images), labels, across_processes=True)` is
shorthand for this. The gradients equal those of one process with the whole batch, provided that parameter gradients are
averaged over the processes, as DistributedDataParallel, Accelerate and Fabric do:

    L_r = loss of process r,  E_i = embedding of sample i,  N processes
    gradient of E_i on its process = sum over r of dL_r/dE_i
    averaged gradient of a parameter theta = (1/N) sum over i of (sum over r of dL_r/dE_i) (dE_i/dtheta)

If every process computes the same loss L, the inner sum is N dL/dE_i, and the result is dL/dtheta. If the processes
compute different losses, the result is the gradient of their mean.
"""

from __future__ import annotations

from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


@overload
def gather_embeddings(
    embeddings: Tensor, labels: Tensor, *, weights: None = None, same_size: bool = False
) -> tuple[Tensor, Tensor]: ...


@overload
def gather_embeddings(
    embeddings: Tensor, labels: Tensor, *, weights: Tensor, same_size: bool = False
) -> tuple[Tensor, Tensor, Tensor]: ...


def gather_embeddings(
    embeddings: Tensor, labels: Tensor, *, weights: Tensor | None = None, same_size: bool = False
) -> tuple[Tensor, ...]:
    """Gather the embeddings and labels of all processes, in the order of the ranks.

    Every process must call this function, with the same dtypes, the same dimension and the same optional arguments. The
    number of samples may differ and may be 0. Without a process group, or with a single process, the arguments are
    returned unchanged, except that the weights are detached.

    Args:
        embeddings: The embeddings [B, d] of this process. Their gradient is the sum of their gradients in the losses of
            all processes.
        labels: The class ids [B] or multi-hot labels [B, C] of this process.
        weights: The sample weights [B] of this process.
        same_size: If True, B must be the same on every process. The processes then do not exchange their sizes, which
            saves one host-device synchronization per step on a GPU.

    Returns:
        The embeddings and labels of all processes, and the weights if they were passed.
    """
    if not isinstance(labels, Tensor):
        raise ValueError(f"labels must be a tensor, got {type(labels).__name__}: pass class ids or multi-hot labels")
    for name, part in (("labels", labels), ("weights", weights)):
        if part is not None and len(part) != len(embeddings):
            raise ValueError(
                f"{name} has {len(part)} entries but embeddings has {len(embeddings)}: pass one per sample"
            )
    parts = [labels] if weights is None else [labels, weights.detach()]
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return (embeddings, *parts)
    sizes = [len(embeddings)] * dist.get_world_size() if same_size else _gather_sizes(embeddings)
    gathered: Tensor = _Gather.apply(embeddings, sizes)  # type: ignore[no-untyped-call]
    return (gathered, *[_gather(part.to(embeddings.device, non_blocking=True), sizes) for part in parts])


def _gather_sizes(embeddings: Tensor) -> list[int]:
    """Return the number of samples on each process."""
    sizes = torch.empty(dist.get_world_size(), dtype=torch.int64, device=embeddings.device)
    dist.all_gather_into_tensor(sizes, torch.full_like(sizes[:1], len(embeddings)))
    counts: list[int] = sizes.tolist()
    return counts


def _gather(part: Tensor, sizes: list[int]) -> Tensor:
    """Concatenate the tensors `part` of all processes along dimension 0. sizes[i] is the length on rank i."""
    if part.dtype == torch.bool:  # not every backend can send booleans
        return _gather(part.to(torch.uint8), sizes).bool()
    largest = max(sizes)
    padded = torch.cat([part, part.new_zeros(largest - len(part), *part.shape[1:])]).contiguous()
    gathered = padded.new_empty(len(sizes) * largest, *part.shape[1:])
    dist.all_gather_into_tensor(gathered, padded)
    return torch.cat([chunk[:n] for chunk, n in zip(torch.split(gathered, largest), sizes, strict=True)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        return _gather(part, sizes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        g = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(g)
        start = sum(ctx.sizes[: dist.get_rank()])
        return g[start : start + ctx.sizes[dist.get_rank()]], None
