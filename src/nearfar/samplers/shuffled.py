"""The shuffled sampler: every sample at most once per epoch, in random order."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices
from nearfar.validation import Labels, as_labels


@register("shuffled")
class Shuffled(BatchSampler):
    """Batches of `size` samples from a random permutation.

    Args:
        labels: Labels [N]. Their values are ignored; only the number of samples N is used.
        size: Samples per batch. If there are fewer samples, the epoch is a single batch of all samples.
        drop_last: Whether to drop the last batch if it is smaller than the others.
        seed: See `BatchSampler`.
        rank: See `BatchSampler`.
        world: See `BatchSampler`.

    >>> [sorted(batch) for batch in Shuffled([0, 0, 1], size=8)]
    [[0, 1, 2]]
    """

    def __init__(
        self,
        labels: Labels,
        *,
        size: int = 128,
        drop_last: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
        if size < 1:
            raise ValueError(f"size must be at least 1, got size={size}")
        self.samples = len(as_labels(labels))
        self.size, self.drop_last = min(size, self.samples), drop_last

    def extra_repr(self) -> str:
        return f"samples={self.samples}, size={self.size}, drop_last={self.drop_last}"

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        order = rng.permutation(self.samples).astype(np.int64)
        batches = [order[start : start + self.size] for start in range(0, self.samples, self.size)]
        if self.drop_last and len(batches) > 1 and len(batches[-1]) < self.size:
            batches.pop()
        return batches
