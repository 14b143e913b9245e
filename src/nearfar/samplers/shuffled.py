"""Shuffled batches: every sample once an epoch, in random order."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.batch_sampler import PlannedBatches
from nearfar.samplers.class_index import Indices


class Shuffled(PlannedBatches):
    """Batches of `size` from a random permutation of `samples` indices.

    The rest that does not fill a batch is left out with `drop_last` (default), or a smaller batch at the end. Fewer
    samples than `size` make one batch of them all, so that an epoch is never empty.

    >>> [sorted(batch) for batch in Shuffled(samples=3, size=8)]
    [[0, 1, 2]]
    """

    def __init__(
        self, *, samples: int, size: int, drop_last: bool = True, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
        if samples < 1 or size < 1:
            raise ValueError(f"samples and size must be at least 1, got samples={samples}, size={size}")
        self.samples, self.size, self.drop_last = samples, min(size, samples), drop_last

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        order = rng.permutation(self.samples).astype(np.int64)
        batches = [order[start : start + self.size] for start in range(0, self.samples, self.size)]
        if self.drop_last and len(batches) > 1 and len(batches[-1]) < self.size:
            batches.pop()
        return batches
