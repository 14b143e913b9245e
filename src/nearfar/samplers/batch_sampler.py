"""The base class of all samplers and their registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.registry import Registry
from nearfar.samplers.class_index import Indices

SAMPLERS: Registry[Any] = Registry("sampler", package="nearfar.samplers")
# Constructor parameters that `create` supplies. All other parameters are options of the sampler.
SUPPLIED = ("labels", "pairs", "seed", "rank", "world")

register = SAMPLERS.register


class BatchSampler:
    """A `batch_sampler` for a DataLoader, with a seed and a state.

    Iterating over the sampler yields the remaining batches of the current epoch; iterating again yields the next epoch.
    A subclass sets `size` and implements `plan(rng)`, which returns the batches of an epoch. `rng` is seeded with
    (seed, epoch). The complete state is therefore the seed, the epoch and the position within the epoch, and a run can
    resume in the middle of an epoch.

    If the batches depend on the progress of training, as in PROFS, the sampler also overrides `next_batch`, `observe`,
    `samples_to_embed` and `write_embeddings`.

    Args:
        seed: Seed of all random choices of the sampler.
        rank: Rank of this process. It gets the samples at positions rank, rank + world, ... of each global batch.
        world: Number of processes that split each global batch.

    Attributes:
        size: Number of samples in a full global batch.
        representatives: Number of class representatives at the start of each global batch (see `Profs`), or None.
        cycle: Index of the PROFS cycle that the last batch belongs to; always 0 for other samplers.
        is_adaptive: Whether the next batch may depend on the values passed to `observe`. If so, request a batch only
            after the training step on the previous batch.
    """

    size: int
    representatives: int | None = None
    cycle: int = 0
    is_adaptive: bool = False

    def __init__(self, *, seed: int = 0, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank must be at least 0 and below world={world}, got {rank}")
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
        """Return the text that `repr` shows between the parentheses, before the seed."""
        return f"size={self.size}"

    def __repr__(self) -> str:
        processes = f", rank={self.rank}, world={self.world}" if self.world > 1 else ""
        return f"{type(self).__name__}({self.extra_repr()}, seed={self.seed}{processes})"

    def observe(self, embeddings: Tensor, loss: Tensor) -> None:
        """Receive the result of the training step on the last batch.

        Args:
            embeddings: Embeddings of the global batch, in the order of the batch.
            loss: Loss of the global batch, a scalar.
        """

    def samples_to_embed(self) -> list[int] | None:
        """Return the indices of the samples whose embeddings the sampler needs before the next batch, or None."""
        return None

    def write_embeddings(self, embeddings: Tensor) -> None:
        """Receive the embeddings of the samples that `samples_to_embed` returned, in the same order."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a sampler continues with the next batch."""
        return {"seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The seed in the state replaces the seed of this sampler."""
        self.seed, self.epoch, self.position = (int(state[key]) for key in ("seed", "epoch", "position"))
        self._planned = None
