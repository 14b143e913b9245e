"""The PROFS sampler: every class has a representative sample, which stays the same for a cycle of M batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices, classes_per_batch, group_by_class
from nearfar.samplers.hncm import HNCM
from nearfar.samplers.plateau import Plateau
from nearfar.samplers.representatives import RepresentativeQueues
from nearfar.validation import Labels, check_choice, check_positive

# These numbers are part of the seeds of random generators, so that generators for different purposes draw independent
# numbers. See also QUEUE in `nearfar.samplers.representatives`.
ORDER, BATCH = 2, 3


def steps_per_cycle(*, classes: int, size: int, per_class: int, rho: float = 6.0) -> int:
    """Return the number of batches in a PROFS cycle, M = ceil(rho / p) with p = B / (I L) (PROFS, section 5.4).

    B is the batch size, I the number of samples per class in a batch, and L the number of classes. A class is in a
    batch with probability p, so a cycle uses each representative about rho times.

    >>> steps_per_cycle(classes=11318, size=128, per_class=2)
    1062
    """
    return math.ceil(rho * per_class * classes / size)


@register("profs")
class Profs(BatchSampler):
    """Batches in which every class has a representative (PROFS, Can et al., arXiv 1907.07585, Algorithm 1).

    A batch has I samples of each of its classes: a representative and I - 1 examples. The representatives of all its
    classes come first, then the first example of every class, then the second example of every class, and so on. Pass
    the number of representatives to the loss: `loss(x, y, representatives=sampler.representatives)`.

    Each class keeps its representative for a cycle of M batches. For the next cycle it takes the next sample from its
    shuffled queue. The queue is shuffled again after every sample of the class has been the representative once. A
    cycle may continue into the next epoch.

    Without mining, classes are used in random order. A new random order starts when every class has been used once, and
    at the start of each cycle. The last batch of an order is completed with classes from the start of the same
    order. With mining="hncm", the embeddings of the representatives determine the classes of a batch (see `HNCM`).

    The paper leaves three choices open, which we made as follows. The representative is never drawn as an example,
    unless it is the only sample of its class. Examples repeat only in classes with fewer than I samples. An epoch has
    ceil(N / B) batches, about as many as with other samplers.

    The batches are determined by the seed and, with `mining` or `patience`, by the values passed to `observe`. With
    several processes, all must pass the same values to `observe`.

    Args:
        labels: Labels [N], integers or strings.
        size: Samples per batch including the representatives, B. It is rounded down to a multiple of I, but a batch has
            at least 2 classes. Ignored if `classes` is given.
        classes: Classes per batch. If the labels have fewer classes, every batch contains all of them.
        per_class: Samples per class including the representative, I.
        rho: How many times a cycle uses each representative, on average. The default is from the paper.
        steps: Batches per cycle, M. The default is `steps_per_cycle`, or no limit if `patience` is given.
        mining: "hncm" for hard negative class mining, or None.
        seeds_per_batch: Number of random classes per batch. HNCM completes the batch with their nearest classes.
        greedy: See `HNCM`.
        fill: If True, request the embeddings of all representatives for HNCM at the start of a cycle. Otherwise, the
            table of HNCM contains only representatives from past batches.
        normalize: See `HNCM`.
        patience: End a cycle when the loss has not improved for this many steps (see `Plateau`). The paper offers this
            as an alternative to a fixed M.
        seed: See `BatchSampler`.
        rank: See `BatchSampler`.
        world: See `BatchSampler`.

    >>> sampler = Profs([0, 0, 0, 1, 1, 1, 2, 2], classes=2, per_class=2, rho=2)
    >>> sampler.representatives, sampler.steps, len(sampler)
    (2, 3, 2)
    """

    is_adaptive = True

    def __init__(
        self,
        labels: Labels,
        *,
        size: int = 128,
        classes: int | None = None,
        per_class: int = 4,
        rho: float = 6.0,
        steps: int | None = None,
        mining: str | None = None,
        seeds_per_batch: int = 1,
        greedy: bool = False,
        fill: bool = False,
        normalize: bool = True,
        patience: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
        if per_class < 2:
            raise ValueError(f"per_class must be at least 2 (a representative and an example), got {per_class}")
        self._classes, self.per_class = group_by_class(labels), per_class
        self.representatives: int = min(classes_per_batch(size, classes, per_class), len(self._classes))
        self.size = self.representatives * per_class
        check_positive("rho", rho)
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be at least 1, or None to let rho or patience end the cycles, got {steps}")
        self.plateau = None if patience is None else Plateau(patience)
        self.steps = steps
        if steps is None and patience is None:
            self.steps = steps_per_cycle(classes=len(self._classes), size=self.size, per_class=per_class, rho=rho)
        if mining is not None:
            check_choice("mining", mining, ("hncm",))
        elif seeds_per_batch != 1 or greedy or fill or not normalize:
            raise ValueError("seeds_per_batch, greedy, fill and normalize need mining='hncm', got mining=None")
        if not 1 <= seeds_per_batch <= self.representatives:
            raise ValueError(
                f"seeds_per_batch must be from 1 to {self.representatives} (classes per batch), got {seeds_per_batch}"
            )
        self.hncm = None if mining is None else HNCM(len(self._classes), greedy=greedy, normalize=normalize)
        self.seeds_per_batch, self.fill = seeds_per_batch, fill
        self.cycle = 0
        self._next = (0, 0)  # cycle and step of the next batch
        self._last: Indices | None = None  # classes of the last batch
        self._filled = -1  # last cycle for which `write_embeddings` received all representatives
        self._reset_draws()

    def extra_repr(self) -> str:
        options = {"steps": self.steps, "mining": None if self.hncm is None else "hncm"}
        samples = len(self._classes.samples)
        text = f"samples={samples}, classes={self.representatives}, per_class={self.per_class}"
        return ", ".join([text, *(f"{key}={value!r}" for key, value in options.items() if value is not None)])

    def _reset_draws(self) -> None:
        """Create the representative queues anew from the seed, and clear the cached class order."""
        self._queues = RepresentativeQueues(self._classes, self.seed)
        self._order: tuple[tuple[int, int], Indices] | None = None

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-len(self._classes.samples) // self.size)

    def next_batch(self) -> Indices:
        cycle, step = self._next
        rng = np.random.default_rng((self.seed, BATCH, cycle, step))
        chosen = self._random_classes(cycle, step) if self.hncm is None else self._hard_classes(self.hncm, rng)
        heads = self._queues.at(cycle)[chosen]
        sizes = self._classes.sizes[chosen]
        examples = draw_distinct(np.maximum(sizes - 1, 1), self.per_class - 1, rng)
        # The examples are offsets among the samples other than the representative. Add 1 to those at or above the
        # offset of the representative, to skip it.
        examples += (examples >= heads[:, None]) & (sizes > 1)[:, None]
        order = self._classes.starts[chosen] + np.concatenate([heads[None], examples.T])
        self.cycle, self._last = cycle, chosen
        self._next = (cycle + 1, 0) if step + 1 == self.steps else (cycle, step + 1)
        batch: Indices = self._classes.samples[order.ravel()]
        return batch

    def _random_classes(self, cycle: int, step: int) -> Indices:
        count, total = self.representatives, len(self._classes)
        number, part = divmod(step, -(-total // count))
        if self._order is None or self._order[0] != (cycle, number):
            rng = np.random.default_rng((self.seed, ORDER, cycle, number))
            self._order = ((cycle, number), rng.permutation(total).astype(np.int64))
        return self._order[1].take(np.arange(part * count, (part + 1) * count), mode="wrap")

    def _hard_classes(self, hncm: HNCM, rng: np.random.Generator) -> Indices:
        seeds = rng.choice(len(self._classes), self.seeds_per_batch, replace=False).tolist()
        return hncm.choose(seeds, self.representatives, rng)

    def observe(self, embeddings: Tensor, loss: Tensor) -> None:
        if self._last is None:
            raise ValueError("observe() was called before the sampler yielded a batch: request a batch first")
        if self.hncm is not None:
            if len(embeddings) != self.size:
                raise ValueError(
                    f"embeddings must have one vector for each of the {self.size} samples of the global batch, "
                    f"got shape {list(embeddings.shape)}"
                )
            self.hncm.write(self._last, embeddings[: self.representatives])
        if self.plateau is not None:
            if self._next[0] == self.cycle and self.plateau.observe(float(loss)):
                self._next = (self.cycle + 1, 0)
            if self._next[0] != self.cycle:
                self.plateau.reset()

    def samples_to_embed(self) -> list[int] | None:
        """Return the representatives of all classes if `fill` is set and a new cycle is about to start, else None."""
        cycle = self._next[0]
        if not self.fill or self._filled == cycle:
            return None
        indices: list[int] = self._classes.samples[self._classes.starts + self._queues.at(cycle)].tolist()
        return indices

    def write_embeddings(self, embeddings: Tensor) -> None:
        if self.hncm is None:
            raise ValueError("write_embeddings() stores embeddings for HNCM: create the sampler with mining='hncm'")
        if len(embeddings) != len(self._classes):
            raise ValueError(
                f"embeddings must have one vector per class ({len(self._classes)}), got shape {list(embeddings.shape)}"
            )
        self.hncm.write(np.arange(len(self._classes)), embeddings)
        self._filled = self._next[0]

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() | {"cycle": self.cycle, "next": list(self._next), "filled": self._filled}
        parts = {"hncm": self.hncm, "stall": self.plateau}
        return state | {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, option, part in (("hncm", "mining", self.hncm), ("stall", "patience", self.plateau)):
            if (part is None) == (name in state):
                raise ValueError(
                    f"the state was saved {'with' if part is None else 'without'} {option}, but this sampler was "
                    f"created {'without' if part is None else 'with'} it: use the options of the saved run"
                )
            if part is not None:
                part.load_state_dict(state[name])
        super().load_state_dict(state)
        self.cycle, self._filled, self._last = int(state["cycle"]), int(state["filled"]), None
        cycle, step = state["next"]
        self._next = (int(cycle), int(step))
        self._reset_draws()


def draw_distinct(sizes: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Draw `count` random numbers from range(size) for each size. Return an array of shape [len(sizes), count].

    The numbers in a row are all different if size >= count. Otherwise they repeat.

    >>> draw_distinct(np.array([2, 1]), 3, np.random.default_rng(0))
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    drawn = np.empty((len(sizes), count), dtype=np.int64)
    for k in range(count):
        # `draw` is an index into the numbers that are not drawn yet. To get the number itself, add 1 for each earlier
        # draw at or below it, in ascending order.
        draw = rng.integers(np.maximum(sizes - k, 1))
        for earlier in np.sort(drawn[:, :k], axis=1).T:
            draw += earlier <= draw
        drawn[:, k] = draw
    return np.take_along_axis(drawn, np.arange(count) % sizes[:, None], axis=1)
