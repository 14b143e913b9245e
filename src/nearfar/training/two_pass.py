"""Train on batches whose autograd graph does not fit into memory: pass each batch through the network twice.

Splitting a batch into parts and adding up their losses would lose the pairs between parts. Gradient caching (Gao et
al., RepL4NLP 2021, arXiv 2101.06983) keeps all pairs:

    1  embed the parts without an autograd graph, and concatenate the embeddings E
    2  compute the loss of E, its gradient dL/dE, and the gradient of the parameters of the loss
    3  embed each part again, with an autograd graph, and backpropagate its part of dL/dE through the network

Memory holds the graph of one part at a time, and a step takes about a third longer. The gradient equals that of a
single pass if the network treats samples independently. A batch norm in evaluation mode does (`model.freeze_bn`). A
batch norm in training mode does not: it normalizes each part by the statistics of this part. It updates its running
statistics only in the second pass. Dropout draws the same random numbers in both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.training.randomness import random_state, set_random_state


def two_pass(
    network: nn.Module,
    compute_loss: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    micro_batch: int,
    embed: Callable[[Tensor], Tensor] | None = None,
    last_backward: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of compute_loss(network(x)) to the gradients of the parameters.

    Args:
        network: The network.
        compute_loss: Function that maps the embeddings of the batch to the loss.
        x: Input of the network [B, ...].
        micro_batch: Number of samples per part.
        embed: Function to call instead of the network, for example the compiled network or the network under autocast.
        last_backward: Function that creates a context manager for the last backward pass. After this pass, all
            gradients are complete.

    Returns:
        The loss and the embeddings, detached.
    """
    embed = network if embed is None else embed
    parts = torch.split(x, micro_batch)
    random_states, outputs = [], []
    with torch.no_grad(), without_statistics_update(network):
        for part in parts:
            random_states.append(random_state())
            outputs.append(embed(part))
    embeddings = torch.cat(outputs).requires_grad_()
    loss = compute_loss(embeddings)
    loss.backward()  # type: ignore[no-untyped-call]
    end = random_state()
    assert embeddings.grad is not None
    gradients = torch.split(embeddings.grad, micro_batch)
    for i, (part, state, gradient) in enumerate(zip(parts, random_states, gradients, strict=True)):
        set_random_state(state)
        output = embed(part)
        with last_backward() if i == len(parts) - 1 else nullcontext():
            output.backward(gradient)
    set_random_state(end)
    return loss.detach(), embeddings.detach()


@contextmanager
def without_statistics_update(network: nn.Module) -> Iterator[None]:
    """Keep batch norms in training mode from updating their running statistics inside the `with` block.

    They still normalize by the statistics of the batch.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm) and module.training]
    saved = [(norm.momentum, _copy(norm.num_batches_tracked)) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
        yield
    finally:
        for norm, (momentum, count) in zip(norms, saved, strict=True):
            norm.momentum = momentum
            if count is not None and norm.num_batches_tracked is not None:
                norm.num_batches_tracked.copy_(count)


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()
