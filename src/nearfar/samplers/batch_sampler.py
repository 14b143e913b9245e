"""What all batch samplers share: an epoch's batches follow from seed and epoch alone, so runs resume in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.registry import Registry
from nearfar.samplers.class_index import Indices

SAMPLERS: Registry[Any] = Registry("sampler", package="nearfar.samplers")
# What the training loop passes to every sampler. All other parameters of its constructor are options.
SUPPLIED = ("labels", "seed", "rank", "world")

register = SAMPLERS.register


class BatchSampler:
    """A `batch_sampler` for a DataLoader: iterating goes through one epoch, from where it stopped, then on to the next.

    A subclass plans an epoch: `plan(rng)` gives its batches, a pure function of the generator, which is seeded by
    (seed, epoch). State is therefore two numbers, epoch and position. With `world` ranks, each gets its part of the
    same global batch: rows rank, rank + world, ... of it. `size` is how many rows a full global batch has.

    A sampler may listen to the training instead (PROFS); what a loop needs for that, every sampler has:

    representatives    how many rows at the front of the global batch are class representatives; None: there are none
    cycle              which set of representatives the batch last yielded belongs to
    live               what comes next depends on `observe`: ask for a batch only after the step on the one before
    observe            is told the embeddings and the loss of the batch last yielded, after its step
    wants_fill, filled samples to embed before the next batch is asked for, and the place to hand in their embeddings
    """

    size: int
    representatives: int | None = None
    cycle: int = 0
    live: bool = False

    def __init__(self, *, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in range(world={world}), got {rank}")
        self.seed, self.rank, self.world = seed, rank, world
        self.epoch = 0
        self.position = 0
        self._planned: tuple[int, list[Indices]] | None = None

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        """The batches of an epoch."""
        raise NotImplementedError

    def batches(self) -> list[Indices]:
        """The global batches of the current epoch."""
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = (self.epoch, self.plan(np.random.default_rng((self.seed, self.epoch))))
        return self._planned[1]

    def next_batch(self) -> Indices:
        """The global batch at the current position of the current epoch."""
        return self.batches()[self.position]

    def __len__(self) -> int:
        """Batches of the current epoch, those already gone included."""
        return len(self.batches())

    def __iter__(self) -> Iterator[list[int]]:
        while self.position < len(self):
            batch = self.next_batch()
            self.position += 1
            yield batch[self.rank :: self.world].tolist()
        self.epoch += 1
        self.position = 0

    def observe(self, embeddings: Tensor, loss: Tensor) -> None:
        """Hear of the step on the batch last yielded: the rows of the global batch in its order, and the loss."""

    def wants_fill(self) -> list[int] | None:
        """Samples whose embeddings are wanted before the next batch, or None."""
        return None

    def filled(self, embeddings: Tensor) -> None:
        """Take the embeddings of the samples that `wants_fill` named, in their order."""

    def state_dict(self) -> dict[str, Any]:
        """Where the sampler stands: enough to go on with the next batch."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; its seed replaces this sampler's."""
        self.seed, self.epoch, self.position = (int(state[key]) for key in ("seed", "epoch", "position"))
        self._planned = None
