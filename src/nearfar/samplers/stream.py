"""The stream sampler: samples in the order in which they are stored, mixed by a shuffle buffer."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices
from nearfar.validation import Labels, as_labels


@register("stream")
class Stream(BatchSampler):
    """Batches of `size` samples that are read almost in order, for data that is slow to read at random positions.

    An epoch starts at a random sample and passes through all samples once, in the order in which they are stored. A
    buffer holds the next `buffer` samples. Each sample of a batch is drawn at random from the buffer, and the next
    stored sample takes its place. The buffer holds sample indices, not images, so it takes 8 bytes per sample.

    Args:
        labels: Labels [N]. Their values are ignored; only the number of samples N is used.
        size: Samples per batch. If there are fewer samples, the epoch is a single batch of all samples.
        buffer: Number of samples in the buffer. If it is N or more, the order is a random permutation.
        drop_last: Whether to drop the last batch if it is smaller than the others.
        seed: See `BatchSampler`.
        rank: See `BatchSampler`.
        world: See `BatchSampler`.

    >>> sorted(sum((list(batch) for batch in Stream([0] * 6, size=2, buffer=3)), []))
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        labels: Labels,
        *,
        size: int = 128,
        buffer: int = 10_000,
        drop_last: bool = True,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
        for name, value in (("size", size), ("buffer", buffer)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {name}={value}")
        self.samples = len(as_labels(labels))
        self.size, self.buffer, self.drop_last = min(size, self.samples), buffer, drop_last

    def extra_repr(self) -> str:
        return f"samples={self.samples}, size={self.size}, buffer={self.buffer}, drop_last={self.drop_last}"

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        stored = np.roll(np.arange(self.samples, dtype=np.int64), -int(rng.integers(self.samples)))
        held, following = stored[: self.buffer].copy(), stored[self.buffer :]
        slots = rng.integers(len(held), size=len(following))
        order = np.empty(self.samples, dtype=np.int64)
        for position, (slot, row) in enumerate(zip(slots.tolist(), following.tolist(), strict=True)):
            order[position] = held[slot]
            held[slot] = row
        order[len(following) :] = rng.permutation(held)
        batches = [order[start : start + self.size] for start in range(0, self.samples, self.size)]
        if self.drop_last and len(batches) > 1 and len(batches[-1]) < self.size:
            batches.pop()
        return batches
