"""The plan of a run on cached activations: what it does, how long it takes and how much memory it needs.

To estimate the times, a few images are loaded and passed through the network on this machine. Loading, the frozen
blocks, and the forward and backward pass of the trained blocks are timed separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nearfar.formatting import counted, disk_size, duration, memory_size
from nearfar.training.activation_cache import TRAIN, ActivationCache
from nearfar.training.memory import estimate_step_memory
from nearfar.training.prepare import training_size
from nearfar.training.run_plan import (
    LIBRARIES,
    TIMED_IMAGES,
    count_forwards,
    count_steps,
    overlap,
    time_network,
    timed,
)


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


def plan_cached_run(cache: ActivationCache) -> CachePlan:
    """Measure the speed on a few images, and estimate the time and memory of a run. Nothing is written."""
    config, network = cache.config, cache.network
    train, loader = cache.parts[TRAIN]
    batch_size, steps, epochs = count_steps(config, train)
    rows = list(range(min(TIMED_IMAGES, len(train))))
    for _ in range(2):  # the first pass opens files and creates the kernels for this batch size, so it is slower
        load, images = timed(lambda: loader.dataset.fetch(rows, train=True))
        compute, activations = timed(partial(cache.compute, images))
        forward, both = time_network(config, network, network.upper, activations)
    count = len(rows)
    evaluated = {name: len(manifest) for name, (manifest, _) in cache.parts.items() if name != TRAIN}
    forwards = count_forwards(config, len(train), evaluated, epochs)
    total, absent, size = cache.count_planned()
    return CachePlan(
        images=total,
        absent=absent,
        size=size,
        steps=steps,
        batch_size=batch_size,
        build_seconds=absent * overlap(load / count, compute / count, loader, cache.device),
        train_seconds=(steps * batch_size * both + forwards * forward) / count,
        memory=LIBRARIES + estimate_step_memory(config, network, network.upper, activations[:2], batch_size),
    )


def describe_cached_plan(cache: ActivationCache, plan: CachePlan) -> list[str]:
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
