"""Shuffled batches: every sample once an epoch, in random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices


@register("shuffled")
class Shuffled(BatchSampler):
    """Batches of `size` from a random permutation of the samples; of `labels` only their number counts.

    The rest that does not fill a batch is left out with `drop_last` (default), or a smaller batch at the end. Fewer
    samples than `size` make one batch of them all, so that an epoch is never empty.

    >>> [sorted(batch) for batch in Shuffled([0, 0, 1], size=8)]
    [[0, 1, 2]]
    """

    def __init__(
        self,
        labels: Sequence[object] | NDArray[Any],
        *,
        size: int = 128,
        drop_last: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
        self.samples = len(labels)
        if self.samples < 1 or size < 1:
            raise ValueError(f"labels and size must be at least 1, got {self.samples} labels and size={size}")
        self.size, self.drop_last = min(size, self.samples), drop_last

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        order = rng.permutation(self.samples).astype(np.int64)
        batches = [order[start : start + self.size] for start in range(0, self.samples, self.size)]
        if self.drop_last and len(batches) > 1 and len(batches[-1]) < self.size:
            batches.pop()
        return batches
