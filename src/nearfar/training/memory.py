"""Estimate the memory that training needs, before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from nearfar.config.schema import Config
from nearfar.data import BatchLoader
from nearfar.models import Embedder
from nearfar.training.distributed import process_group
from nearfar.training.evaluate import dtype_of, embedding_function, to_device
from nearfar.training.state import TrainState

OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "sgd": 1, "rmsprop": 2}
# For a large batch of B samples, a loss needs memory for at most this many [B, B] matrices (docs/benchmarks/speed.md).
PAIR_MATRICES = 12


def estimate_memory(state: TrainState, loader: BatchLoader) -> int | None:
    """Estimate the memory of a training step in bytes (see `estimate_step_memory`).

    Args:
        state: The state of training.
        loader: BatchLoader of the training samples.

    Returns:
        The estimate, or None if each process holds only a part of the network or of the proxies.
    """
    if state.is_sharded:
        return None
    samples = loader.dataset.fetch([0, len(loader.dataset) - 1], train=True)
    compute = embedding_function(state.embedder, loader)
    return estimate_step_memory(state.config, state.embedder, compute, samples, state.sampler.size)


def estimate_step_memory(
    config: Config, embedder: Embedder, compute: Callable[[Tensor], Tensor], samples: Tensor, batch_size: int
) -> int:
    """Estimate the memory of a training step in bytes: weights, gradients, optimizer, activations and loss.

    The activations are those that autograd saves in a forward pass of a few samples, scaled to the batch. The memory of
    the loss is that of its [B, B] matrices. The estimate leaves out proxies, temporary buffers and the libraries.

    Args:
        config: The configuration of the run.
        embedder: The network.
        compute: Function that maps samples to embeddings: the network or a part of it.
        samples: A few samples, as `compute` expects them.
        batch_size: Number of samples in a step, over all processes.
    """
    parameters = list(embedder.parameters())
    weights = sum(p.numel() * p.element_size() for p in parameters)
    trained = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad)
    local = process_group.largest_part_size(batch_size)
    at_once = local if config.micro_batch is None else min(local, config.micro_batch)
    activations = _measure_activations(embedder, compute, samples) // len(samples) * at_once
    optimizer = trained * (1 + OPTIMIZER_STATES[config.optimizer.name])
    return weights + optimizer + activations + PAIR_MATRICES * 4 * batch_size**2


def _measure_activations(embedder: Embedder, compute: Callable[[Tensor], Tensor], samples: Tensor) -> int:
    """Return the total size in bytes of the tensors that autograd saves, except for parameters."""
    own = {p.untyped_storage()._cdata for p in embedder.parameters()}
    sizes: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    x = to_device(samples, next(embedder.parameters()).device, dtype_of(embedder), channels_last=embedder.channels_last)
    hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
    with trial_step(embedder), torch.enable_grad(), hooks:
        output = compute(x)  # keeps all saved tensors alive, so that no two of them have the same address
        del output
    return sum(sizes.values())


@contextmanager
def trial_step(embedder: Embedder) -> Iterator[None]:
    """Let an embedder compute what it computes in a training step, without a change of batch norm statistics."""
    mode, mirror = embedder.training, embedder.mirror
    embedder.eval()
    embedder.mirror = False
    try:
        yield
    finally:
        embedder.train(mode)
        embedder.mirror = mirror
