"""The plan of a run on cached activations: what it does, how long it takes and how much memory it needs.

To estimate the times, a few images are loaded and passed through the network on this machine. Loading, the frozen
blocks, and the forward and backward pass of the trained blocks are timed separately.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.formatting import counted, disk_size, duration, memory_size
from nearfar.training.activation_cache import TEST, TRAIN, ActivationCache
from nearfar.training.components import make_sampler
from nearfar.training.evaluate import autocast, dtype_of, to_device
from nearfar.training.memory import estimate_step_memory
from nearfar.training.prepare import training_size

TIMED_IMAGES = 16
# Memory of Python, torch, other libraries and temporary buffers. We measured it in a run that trains the blocks from
# blocks.8 up of EfficientNet-Lite0, with batches of 64 images of 224 pixels. The memory of this run peaked at 1.8 GB.
# The training step needed 1.1 GB of it.
LIBRARIES = 680 * 2**20


@dataclass(frozen=True)
class CachePlan:
    """The estimated size, time and memory of a run that trains on cached activations.

    Attributes:
        images: Number of images in the views that the run will certainly read. An image in three views counts three
            times.
        absent: Number of these images whose activations are not in the cache yet.
        size: Size of the activations of all these images in bytes.
        steps: Number of training steps.
        batch_size: Number of samples in a step.
        build_seconds: Estimated time to compute the activations that are not in the cache yet.
        train_seconds: Estimated time of training, including evaluations.
        memory: Estimated memory of the process in bytes.
    """

    images: int
    absent: int
    size: int
    steps: int
    batch_size: int
    build_seconds: float
    train_seconds: float
    memory: int

    @property
    def absent_size(self) -> int:
        """Size of the activations that are not in the cache yet, in bytes."""
        return self.size * self.absent // max(1, self.images)

    @property
    def seconds(self) -> float:
        """Estimated time of the whole run."""
        return self.build_seconds + self.train_seconds


def plan_run(cache: ActivationCache) -> CachePlan:
    """Measure the speed on a few images, and estimate the time and memory of a run. Nothing is written."""
    config, network = cache.config, cache.network
    train, loader = cache.parts[TRAIN]
    sampler = make_sampler(config, train)
    steps = config.steps or (config.epochs or 0) * len(sampler)
    epochs = steps / max(1, len(sampler))
    rows = list(range(min(TIMED_IMAGES, len(train))))
    for _ in range(2):  # the first pass opens files and creates the kernels for this batch size, so it is slower
        start = _now()
        images = loader.dataset.fetch(rows, train=True)
        loaded = _now()
        activations = cache.compute(images)
        computed = _now()
        forward, both = _time_upper(cache, activations)
    count = len(images)
    # Workers load images while the main process computes. Together they cannot use more cores than the machine has.
    load, compute = (loaded - start) / count, (computed - loaded) / count
    cores, workers = os.cpu_count() or 1, max(1, loader.workers)
    threads = min(torch.get_num_threads(), cores) if cache.device.type == "cpu" else 1
    per_image = max(load / workers, compute, (load + compute * threads) / cores) if loader.workers else load + compute
    evaluated = {name: len(manifest) for name, (manifest, _) in cache.parts.items() if name != TRAIN}
    passes = dict.fromkeys(evaluated, epochs / config.select.every)
    passes[TEST] = config.test * (1 + config.untrained) + (epochs if config.select.by == TEST else 0)
    forwards = len(train) + sum(passes[name] * samples for name, samples in evaluated.items())
    total, absent, size = cache.count_planned()
    return CachePlan(
        images=total,
        absent=absent,
        size=size,
        steps=steps,
        batch_size=sampler.size,
        build_seconds=absent * per_image,
        train_seconds=(steps * sampler.size * both + forwards * forward) / count,
        memory=LIBRARIES + estimate_step_memory(config, network, network.upper, activations[:2], sampler.size),
    )


def describe_plan(cache: ActivationCache, plan: CachePlan) -> list[str]:
    """Return two lines that describe a plan."""
    config, network = cache.config, cache.network
    folder = config.cache.activations
    views = counted(cache.views, "augmented view")
    if plan.absent:
        build = f"computes {plan.absent:,} of {counted(plan.images, 'view')} of images"
        build = f"{build}, {disk_size(plan.absent_size)} in {folder}, in about {duration(plan.build_seconds)}"
    else:
        build = f"reads {counted(plan.images, 'view')} of images, {disk_size(plan.size)}, from {folder}"
    steps = f"{counted(plan.steps, 'step')} of {plan.batch_size:,} in about {duration(plan.train_seconds)}"
    size = training_size(config.images, network.input_size)
    what = f"train {config.model.backbone} at {size} pixels from {network.first_trained} up"
    return [
        f"plan: {what}; everything below is frozen and computed once, for {views} of each training image",
        f"plan: this {build}, then trains {steps}, with about {memory_size(plan.memory)} of memory",
    ]


def _time_upper(cache: ActivationCache, activations: Tensor) -> tuple[float, float]:
    """Return the seconds of a forward pass through the trained part, and of a forward plus backward pass."""
    network = cache.network
    x = to_device(activations, cache.device, dtype_of(network), channels_last=network.channels_last)
    with autocast(cache.config.autocast, cache.device):
        start = _now()
        with torch.no_grad():
            network.upper(x)
        middle = _now()
        embeddings = network.upper(x)
    if embeddings.requires_grad:
        embeddings.float().square().sum().backward()  # type: ignore[no-untyped-call]
        network.zero_grad(set_to_none=True)
    return middle - start, _now() - middle


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
