"""The base class of all samplers and their registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.registry import Registry
from nearfar.samplers.class_index import Indices

SAMPLERS: Registry[Any] = Registry("sampler", package="nearfar.samplers")
# What the training loop passes to every sampler. All other parameters of the constructor are options.
SUPPLIED = ("labels", "seed", "rank", "world")

register = SAMPLERS.register


class BatchSampler:
    """A `batch_sampler` for a DataLoader, with a seed and a state.

    Iterating yields the batches that are left of the current epoch and then starts the next epoch. A subclass sets
    `size` and implements `plan(rng)`, which returns the batches of an epoch. The generator is seeded by (seed, epoch),
    so the state is two numbers, epoch and position, and a run resumes in the middle of an epoch.

    A sampler that adapts to the training, such as PROFS, overrides `next_batch`, `observe`, `samples_to_embed` and
    `write_embeddings` as well.

    Args:
        seed: Seed of everything that the sampler draws.
        rank: Rank of this process. It gets the samples rank, rank + world, ... of each global batch.
        world: Number of processes that split each global batch.

    Attributes:
        size: Number of samples in a full global batch.
        representatives: Number of class representatives at the front of each global batch, or None.
        cycle: Number of the set of representatives that the last batch belongs to.
        is_adaptive: Whether the next batch depends on `observe`. If so, request it only after the step on the last one.
    """

    size: int
    representatives: int | None = None
    cycle: int = 0
    is_adaptive: bool = False

    def __init__(self, *, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in range(world={world}), got {rank}")
        self.seed, self.rank, self.world = seed, rank, world
        self.epoch = 0
        self.position = 0
        self._planned: tuple[int, list[Indices]] | None = None

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        """Return the global batches of an epoch. All random numbers come from `rng`."""
        raise NotImplementedError

    def batches(self) -> list[Indices]:
        """Return the global batches of the current epoch."""
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = (self.epoch, self.plan(np.random.default_rng((self.seed, self.epoch))))
        return self._planned[1]

    def next_batch(self) -> Indices:
        """Return the global batch at the current position of the current epoch."""
        return self.batches()[self.position]

    def __len__(self) -> int:
        """Return the number of batches of the current epoch, including those already yielded."""
        return len(self.batches())

    def __iter__(self) -> Iterator[list[int]]:
        while self.position < len(self):
            batch = self.next_batch()
            self.position += 1
            yield batch[self.rank :: self.world].tolist()
        self.epoch += 1
        self.position = 0

    def extra_repr(self) -> str:
        """Return the options to show in the `repr`."""
        return f"size={self.size}"

    def __repr__(self) -> str:
        processes = f", rank={self.rank}, world={self.world}" if self.world > 1 else ""
        return f"{type(self).__name__}({self.extra_repr()}, seed={self.seed}{processes})"

    def observe(self, embeddings: Tensor, loss: Tensor) -> None:
        """Receive the result of the step on the last batch: embeddings of the global batch in its order, and loss."""

    def samples_to_embed(self) -> list[int] | None:
        """Return the samples whose embeddings the sampler needs before the next batch, or None."""
        return None

    def write_embeddings(self, embeddings: Tensor) -> None:
        """Receive the embeddings of the samples that `samples_to_embed` returned, in their order."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which the sampler continues with the next batch."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. Its seed replaces the seed of this sampler."""
        self.seed, self.epoch, self.position = (int(state[key]) for key in ("seed", "epoch", "position"))
        self._planned = None
