"""Train on several processes with the same result as on one: split batches, gather embeddings, sum gradients.

    torchrun --nproc-per-node 4 -m nearfar train my_images

Rank r of N takes samples r, r + N, ... of every global batch and embeds them. The embeddings E of the global batch are
gathered on every process, and each process computes the loss L of the whole batch. The loss, its proxies, its memory
bank and its random numbers are therefore the same as in training on one process. Only the gradients of the network's
parameters theta are summed over the processes, because each process has only the terms of its own samples i:

    dL/d theta = sum over i of (dL/dE_i) (dE_i/d theta)

Without a process group, the functions here behave as on a single process with rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from nearfar.errors import NearfarError
from nearfar.training.randomness import random_state, set_random_state

# Maximum time to wait for another process, which may be decoding images or computing scores. It can be long, because
# torchrun detects dead processes at once.
TIMEOUT = timedelta(hours=2)

DEVICE_VARIABLE = "NEARFAR_DEVICE"  # environment variable with the device that device=auto uses

S = TypeVar("S", bound=Sequence[Any])


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, counted from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main_process() -> bool:
    """Return whether this process has rank 0. Only this process writes files and prints messages."""
    return rank() == 0


def restart_count() -> int:
    """Return how often torchrun has restarted all processes because one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def was_restarted() -> bool:
    """Return whether torchrun has restarted the processes."""
    return restart_count() > 0


def local_device(name: str) -> torch.device:
    """Return the device for the setting `device`.

    `auto` is the device that the environment variable NEARFAR_DEVICE names. Without the variable, it is a CUDA GPU if
    there is one, otherwise the CPU.

    With several processes, `auto` and `cuda` give each process on a machine its own GPU. Apple's MPS is refused,
    because it has no float64, which the log and several losses use.

    Raises:
        NearfarError: If the name is unknown or the device is not available.
    """
    where = ""
    if name == "auto" and os.environ.get(DEVICE_VARIABLE):
        # commands also pass their option --device in this variable
        name, where = os.environ[DEVICE_VARIABLE], f" (in --device or {DEVICE_VARIABLE})"
    try:
        device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "meta":
        raise NearfarError(f"device={name} is unknown: use auto, cpu, cuda, or a specific GPU such as cuda:1{where}")
    if device.type == "mps":
        raise NearfarError(f"device=mps is not supported, because MPS has no float64: use device=cpu{where}")
    if device.type == "cuda" and device.index is not None and int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1:
        raise NearfarError(f"device={name} would put all processes on one GPU: use device=cuda{where}")
    if device.type == "cuda" and device.index is None and world_size() > 1:
        index, count = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if index >= count:
            raise NearfarError(f"rank {rank()} has no GPU of its own: start at most {count} processes per machine")
        device = torch.device("cuda", index)
    try:
        torch.empty(1, device=device)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise NearfarError(f"device={name} is not available ({reason}): use device=auto or cpu{where}") from None
    if device.type == "cuda":
        torch.cuda.set_device(device)  # `random_state` saves the random state of the current GPU
    return device


def backend() -> str:
    """Return the backend of the process group: gloo for CPU tensors and, if there are GPUs, nccl for GPU tensors.

    Settings, scores and the order of samples are exchanged as CPU tensors even if the network is on a GPU.
    """
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if has_nccl else "gloo"


@contextmanager
def join_process_group() -> Iterator[None]:
    """Join the process group of torchrun for the duration of the `with` block. Without torchrun, do nothing."""
    if world_size() > 1 or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield
        return
    # torchrun keeps its key-value store across restarts. Without a separate prefix for each start, a process could read
    # the address of a process that died, and wait for it forever.
    store, own_rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    start = dist.PrefixStore(f"start {restart_count()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend(), store=start, rank=own_rank, world_size=size, timeout=TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def barrier() -> None:
    """Wait until every process has reached this call."""
    if world_size() > 1:
        dist.all_reduce(torch.zeros(1))  # a CPU tensor, because dist.barrier would also wait for the GPU


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the `with` block on the main process first, then on the others, which can read the files that it wrote."""
    if not is_main_process():
        barrier()
    yield
    if is_main_process():
        barrier()


def local_part(items: S) -> S:
    """Return the items of this process, which are at the positions rank, rank + world_size, ..."""
    part: S = items[rank() :: world_size()]  # type: ignore[assignment]
    return part


def largest_part_size(total: int) -> int:
    """Return the largest number of items that one process gets from `local_part` of `total` items."""
    return -(-total // world_size())


def even_chunk_size(total: int, size: int) -> int:
    """Return the smallest chunk size of at least `size` that gives every process the same number of chunks.

    Synchronized batch norms need the same number of calls on every process. Each process has n = total // world_size
    items, and some have one more. That item needs a chunk of its own only if n is a multiple of the chunk size.
    """
    smallest, largest = total // world_size(), largest_part_size(total)
    while smallest < largest and smallest % size == 0:
        size += 1
    return size


def gather_parts(part: Tensor, total: int) -> Tensor:
    """Gather the parts that `local_part` selected into a tensor of shape [total, ...], in the original order.

    In the backward pass, each process takes the rows of the gradient that belong to its part. Gradients are not summed
    over the processes, because every process computes the same loss.
    """
    if world_size() == 1:
        return part
    gathered: Tensor = _GatherParts.apply(part, total)  # type: ignore[no-untyped-call]
    return gathered


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, total: int) -> Tensor:
        largest, n = largest_part_size(total), world_size()
        if len(part) < largest:
            part = torch.cat([part, part.new_zeros(largest - len(part), *part.shape[1:])])
        parts = part.new_empty(n, largest, *part.shape[1:])
        # gloo expects an output with n * largest rows; flatten returns a view, so this call fills `parts`
        dist.all_gather_into_tensor(parts.flatten(0, 1), part.contiguous())
        return parts.transpose(0, 1).flatten(0, 1)[:total]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g[rank() :: world_size()].contiguous(), None


def broadcast_from_main(tensors: Iterable[Tensor]) -> None:
    """Copy the values of the main process into the tensors of all processes, in place."""
    if world_size() > 1:
        for tensor in tensors:
            values = tensor.detach().contiguous()
            dist.broadcast(values, 0)
            tensor.detach().copy_(values)


def broadcast_text(make: Callable[[], str]) -> str:
    """Call `make` on the main process only, and return its result on every process."""
    if world_size() == 1:
        return make()
    text = make().encode() if is_main_process() else b""
    size = torch.tensor(len(text))
    dist.broadcast(size, 0)
    data = (
        torch.frombuffer(bytearray(text), dtype=torch.uint8)
        if is_main_process()
        else torch.empty(int(size), dtype=torch.uint8)
    )
    dist.broadcast(data, 0)
    return bytes(data.tolist()).decode()


def check_ranks_agree(text: str, advice: str) -> None:
    """Raise an error with this advice on every process unless `text` is the same on all processes."""
    differs = torch.tensor(int(broadcast_text(lambda: text) != text))
    if world_size() > 1:
        dist.all_reduce(differs)
    if differs:
        raise NearfarError(f"the processes have different settings or states: {advice}")


SharedRandom = Callable[[], AbstractContextManager[None]]


@contextmanager
def per_rank_random(seed: int, step: int) -> Iterator[SharedRandom]:
    """Give each process its own random numbers inside the `with` block, for example for dropout.

    Yields a function that creates an inner context, in which all processes draw the same numbers. On a single process,
    both contexts do nothing.
    """
    if world_size() == 1:
        yield nullcontext
        return
    shared = random_state()
    torch.manual_seed(int(np.random.SeedSequence((seed, step, rank())).generate_state(1)[0]))

    @contextmanager
    def shared_random() -> Iterator[None]:
        nonlocal shared
        own = random_state()
        set_random_state(shared)
        try:
            yield
        finally:
            shared = random_state()
            set_random_state(own)

    try:
        yield shared_random
    finally:
        set_random_state(shared)
