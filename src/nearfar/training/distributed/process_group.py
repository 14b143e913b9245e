"""Several processes as one: a global batch in parts, its embeddings together again, gradients summed.

    torchrun --nproc-per-node 4 -m nearfar train my_images

Rank r of N takes rows r, r + N, ... of every global batch and embeds them. The embeddings E of the whole batch are
gathered on every rank (with labels and sample numbers, which every rank knows anyway), and each computes the loss of
all of E. So the loss, its proxies, memories and random numbers are those of one process, on every rank, and

    dL/d theta = sum over rows of (dL/dE_i) (dE_i/d theta) = sum over ranks of what each has of its own rows

is all that is summed. Without a process group every function here gives back what it was given.
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
from nearfar.training.projection import groups
from nearfar.training.randomness import random_state, set_random_state

# How long a rank waits for another, which may decode pictures or score: a dead one is noticed at once by torchrun.
PATIENCE = timedelta(hours=2)

S = TypeVar("S", bound=Sequence[Any])


def world_size() -> int:
    """How many ranks there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this one, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_main_process() -> bool:
    """Whether this rank writes files and talks."""
    return rank() == 0


def restart_count() -> int:
    """How often torchrun has started all processes again, because one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def was_restarted() -> bool:
    """Whether torchrun started this process in place of one that died."""
    return restart_count() > 0


def local_device(name: str) -> torch.device:
    """The device of this name, auto is a GPU where there is one; each of several ranks has a GPU of its own."""
    try:
        device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    except RuntimeError as error:
        raise NearfarError(f"device={name}: {error}") from None
    if device.type != "cuda" or device.index is not None or world_size() == 1:
        return device
    here = int(os.environ.get("LOCAL_RANK", 0))
    if here >= torch.cuda.device_count():
        raise NearfarError(f"rank {rank()} has no GPU of its own: start at most {torch.cuda.device_count()} a machine")
    torch.cuda.set_device(here)
    return torch.device("cuda", here)


@contextmanager
def join_process_group() -> Iterator[None]:
    """The process group that torchrun has started this process for, gloo on the CPU and nccl between GPUs."""
    if world_size() > 1 or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield
        return
    # torchrun keeps one store through its restarts: without a name for each start, a rank may read where another was
    # before it died, and wait for it in vain
    store, rank_, world_ = next(rendezvous("env://", timeout=PATIENCE))
    start = dist.PrefixStore(f"start {restart_count()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(store=start, rank=rank_, world_size=world_, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def barrier() -> None:
    """Until every rank is here."""
    if world_size() > 1:
        dist.barrier()


@contextmanager
def main_process_first() -> Iterator[None]:
    """Rank 0 does it alone, then the others: for what it writes and they can read."""
    if not is_main_process():
        barrier()
    yield
    if is_main_process():
        barrier()


def local_part(rows: S) -> S:
    """This rank's part of what all have: elements rank, rank + world, ..."""
    mine: S = rows[rank() :: world_size()]  # type: ignore[assignment]
    return mine


def largest_part_size(total: int) -> int:
    """Rows of the rank that has most."""
    return -(-total // world_size())


def even_chunk_size(total: int, size: int) -> int:
    """The size of parts, at least this, by which every rank has as many, so that batch norms meet: a few more at most.

    A rank has total // world rows or one more, which makes another part only where the former are whole parts.
    """
    least, most = total // world_size(), largest_part_size(total)
    while least < most and least % size == 0:
        size += 1
    return size


def gather_parts(rows: Tensor, total: int) -> Tensor:
    """[total, ...] of each rank's share, in the order of the whole, on every rank.

    The gradient of a rank's rows is its own share of the whole gradient: nothing is summed, because every rank computes
    the same from the whole.
    """
    if world_size() == 1:
        return rows
    whole: Tensor = _GatherRows.apply(rows, total)  # type: ignore[no-untyped-call]
    return whole


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, total: int) -> Tensor:
        most, n = largest_part_size(total), world_size()
        if len(rows) < most:
            rows = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        parts = rows.new_empty(n, most, *rows.shape[1:])
        dist.all_gather(list(parts), rows.contiguous())
        return parts.transpose(0, 1).flatten(0, 1)[:total]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g[rank() :: world_size()].contiguous(), None


def all_reduce_gradients(parameters: Iterable[Tensor], *, mean: bool = False) -> None:
    """Gradients summed over the ranks (or their mean), in place, a few megabytes at a time."""
    if world_size() == 1:
        return
    sent = []
    for group in groups((p.grad,) for p in parameters if p.grad is not None):
        gradients = [gradient for (gradient,) in group]
        flat = torch.cat([each.reshape(-1) for each in gradients])
        sent.append((gradients, flat, dist.all_reduce(flat, async_op=True)))
    for gradients, flat, handle in sent:
        handle.wait()
        if mean:
            flat /= world_size()
        parts = torch.split(flat, [each.numel() for each in gradients])
        torch._foreach_copy_(gradients, [part.view(each.shape) for part, each in zip(parts, gradients, strict=True)])


def broadcast_from_main(tensors: Iterable[Tensor]) -> None:
    """Every tensor becomes that of rank 0, in place."""
    if world_size() > 1:
        for each in tensors:
            whole = each.detach().contiguous()
            dist.broadcast(whole, 0)
            each.detach().copy_(whole)


def broadcast_text(make: Callable[[], str]) -> str:
    """A text that rank 0 makes, on every rank."""
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


def check_ranks_agree(what: str, cure: str) -> None:
    """An error on every rank unless all have the same text."""
    theirs = broadcast_text(lambda: what)
    differs = torch.tensor(int(theirs != what))
    if world_size() > 1:
        dist.all_reduce(differs)
    if differs:
        raise NearfarError(f"rank {rank()} has other settings or another state than rank 0: {cure}")


Together = Callable[[], AbstractContextManager[None]]


@contextmanager
def per_rank_random(seed: int, step: int) -> Iterator[Together]:
    """Random numbers inside are a rank's own (dropout of its rows); inside `together()` they are those of all.

    Without a group both are the same.
    """
    if world_size() == 1:
        yield nullcontext
        return
    shared = random_state()
    torch.manual_seed(int(np.random.SeedSequence((seed, step, rank())).generate_state(1)[0]))

    @contextmanager
    def together() -> Iterator[None]:
        nonlocal shared
        own = random_state()
        set_random_state(shared)
        try:
            yield
        finally:
            shared = random_state()
            set_random_state(own)

    try:
        yield together
    finally:
        set_random_state(shared)
