"""The plan of a run on images: what it trains, how long that takes and how much memory it needs.

To estimate the time, a few images are loaded and passed through the network on this machine. The plan of a run on
cached activations is in cache_plan.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from nearfar.config.schema import Config
from nearfar.data import BatchLoader, Manifest
from nearfar.formatting import counted, duration, memory_size
from nearfar.models import Embedder
from nearfar.training.activation_cache import TEST, TRAIN, Part
from nearfar.training.components import make_sampler
from nearfar.training.evaluate import autocast, default_batch_size, device_of, dtype_of, set_layout, to_device
from nearfar.training.memory import estimate_step_memory, trial_step

TIMED_IMAGES = 16
# Memory of Python, torch, other libraries and temporary buffers. We measured it in a run that trains the blocks from
# blocks.8 up of EfficientNet-Lite0, with batches of 64 images of 224 pixels. The memory of this run peaked at 1.8 GB.
# The training step needed 1.1 GB of it.
LIBRARIES = 680 * 2**20

T = TypeVar("T")


@dataclass(frozen=True)
class RunPlan:
    """The estimated time and memory of a run on images.

    Attributes:
        train_size, test_size: Side of training and test images in pixels.
        steps: Number of training steps.
        batch_size: Number of samples in a step.
        seconds: Estimated time of the run, including evaluations.
        memory: Estimated memory of the process in bytes.
    """

    train_size: int
    test_size: int
    steps: int
    batch_size: int
    seconds: float
    memory: int


def plan_run(config: Config, network: Embedder, parts: Mapping[str, Part]) -> RunPlan:
    """Measure the speed on a few images, and estimate the time and memory of a run.

    Args:
        config: The configuration.
        network: The network to train.
        parts: A dict that maps the name of each part of the data ("train" is required) to its manifest and a loader.
    """
    train, loader = parts[TRAIN]
    batch_size, steps, epochs = count_steps(config, train)
    rows = list(range(min(TIMED_IMAGES, len(train))))
    set_layout(network)
    mode = network.training
    network.eval()
    for _ in range(2):  # the first pass opens files and creates the kernels for this batch size, so it is slower
        load_test, images = timed(lambda: loader.dataset.fetch(rows))
        forward, _ = time_network(config, network, network, images)
        load, images = timed(lambda: loader.dataset.fetch(rows, train=True))
        with trial_step(network):
            _, both = time_network(config, network, network, images)
    network.train(mode)
    device, count = device_of(network), len(rows)
    evaluated = {name: len(manifest) for name, (manifest, _) in parts.items() if name != TRAIN}
    forwards = count_forwards(config, len(train), evaluated, epochs)
    trained = steps * batch_size * overlap(load / count, both / count, loader, device)
    return RunPlan(
        train_size=images.shape[-1],
        test_size=network.input_size,
        steps=steps,
        batch_size=batch_size,
        seconds=trained + forwards * overlap(load_test / count, forward / count, loader, device),
        memory=LIBRARIES + estimate_step_memory(config, network, network, images[:2], batch_size),
    )


def describe_plan(config: Config, network: Embedder, plan: RunPlan) -> list[str]:
    """Return two lines that describe a plan."""
    trained = "all blocks" if network.first_trained is None else f"from {network.first_trained} up"
    tested = "" if plan.test_size == plan.train_size else f", and test it at {plan.test_size} pixels"
    return [
        f"plan: train {config.model.backbone}, {trained}, on images of {plan.train_size} pixels{tested}",
        f"plan: this trains {counted(plan.steps, 'step')} of {plan.batch_size:,} in about {duration(plan.seconds)}, "
        f"with about {memory_size(plan.memory)} of memory",
    ]


def count_steps(config: Config, train: Manifest) -> tuple[int, int, float]:
    """Return the batch size, the number of steps, and the number of epochs, which may be a fraction."""
    sampler = make_sampler(config, train)
    steps = config.steps or (config.epochs or 0) * len(sampler)
    return sampler.size, steps, steps / max(1, len(sampler))


def count_forwards(config: Config, training: int, evaluated: Mapping[str, int], epochs: float) -> float:
    """Return the number of forward passes of single images for the initialization and all evaluations.

    Args:
        config: The configuration.
        training: Number of training images.
        evaluated: A dict that maps the names of the other parts of the data to their numbers of images.
        epochs: Number of epochs.
    """
    passes = dict.fromkeys(evaluated, epochs / config.select.every)
    passes[TEST] = config.test * (1 + config.untrained) + (epochs if config.select.by == TEST else 0)
    return training + sum(passes[name] * count for name, count in evaluated.items())


def overlap(load: float, compute: float, loader: BatchLoader, device: torch.device) -> float:
    """Return the seconds per image if worker processes load images while the main process computes.

    Together, they cannot use more cores than the machine has.
    """
    if not loader.workers:
        return load + compute
    cores, workers = os.cpu_count() or 1, max(1, loader.workers)
    threads = min(torch.get_num_threads(), cores) if device.type == "cpu" else 1
    return max(load / workers, compute, (load + compute * threads) / cores)


def time_network(
    config: Config, network: Embedder, compute: Callable[[Tensor], Tensor], inputs: Tensor
) -> tuple[float, float]:
    """Return the seconds of a forward pass, and of a forward plus backward pass.

    Args:
        config: The configuration.
        network: The network.
        compute: The network or its trained part.
        inputs: Inputs of `compute`. The forward pass without gradients is computed in the batches of an evaluation.
    """
    device = device_of(network)
    x = to_device(inputs, device, dtype_of(network), channels_last=network.channels_last)

    def forward() -> None:
        with torch.no_grad():
            for part in torch.split(x, default_batch_size(network)):
                compute(part)

    with autocast(config.autocast, device):
        seconds, _ = timed(forward)
        start = now()
        embeddings = compute(x)
    if embeddings.requires_grad:
        embeddings.float().square().sum().backward()  # type: ignore[no-untyped-call]
        network.zero_grad(set_to_none=True)
    return seconds, now() - start


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds that a call takes, and its result."""
    start = now()
    result = function()
    return now() - start, result


def now() -> float:
    """Return the current time, after everything that was sent to a GPU is computed."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
