"""Batches that do not fit the network, whole for the loss: the embedding-cached two-pass gradient.

Cutting a batch into parts and adding up their losses loses the pairs between parts. Instead (Gao et al., RepL4NLP 2021,
arXiv 2101.06983):

    1  embed the parts without a graph, and put the embeddings E together
    2  the loss of the whole E, and its gradient dL/dE (and that of the loss's own parameters)
    3  embed each part again, now with a graph, and send its rows of dL/dE through the network

The graph of one part is held at a time, for about a third more time. The gradient is that of the plain step where the
network treats rows one by one: with batch norm, only if its statistics are frozen (otherwise each part has its own, and
they move once). Dropout draws the same numbers in both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.training.randomness import random_state, set_random_state


def two_pass(
    network: nn.Module,
    value_of: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    micro_batch: int,
    embed: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Adds the gradient of value_of(network(x)) to the parameters; gives the value and the embeddings, detached.

    `embed` is called in place of the network, where it is wrapped (autocast, compiled).
    """
    embed = network if embed is None else embed
    parts = torch.split(x, micro_batch)
    before, embedded = [], []
    with torch.no_grad(), still_statistics(network):
        for part in parts:
            before.append(random_state())
            embedded.append(embed(part))
    rows = torch.cat(embedded).requires_grad_()
    value = value_of(rows)
    value.backward()  # type: ignore[no-untyped-call]
    end = random_state()
    assert rows.grad is not None
    for part, state, gradient in zip(parts, before, torch.split(rows.grad, micro_batch), strict=True):
        set_random_state(state)
        embed(part).backward(gradient)
    set_random_state(end)
    return value.detach(), rows.detach()


@contextmanager
def still_statistics(network: nn.Module) -> Iterator[None]:
    """Batch norms inside use the batch's statistics, as in training, but do not move their running ones."""
    norms = [part for part in network.modules() if isinstance(part, _BatchNorm) and part.training]
    kept = [(norm.momentum, _copy(norm.num_batches_tracked)) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
        yield
    finally:
        for norm, (momentum, count) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            if count is not None and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(count)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
