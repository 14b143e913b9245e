"""PROFS batches: the same representative of every class for M steps, then the next ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices, by_class, classes_per_batch
from nearfar.samplers.hncm import HNCM
from nearfar.samplers.plateau import Stall
from nearfar.samplers.representatives import Queues
from nearfar.validation import check_choice, check_positive

# set the random numbers of each purpose apart; see also queues.QUEUE
ORDER, BATCH = 2, 3


def steps_per_cycle(*, classes: int, size: int, per_class: int, rho: float = 6.0) -> int:
    """M = ceil(rho / p), p = B / (I L): as many steps as use each representative rho times (PROFS, section 5.4).

    >>> steps_per_cycle(classes=11318, size=128, per_class=2)
    1062
    """
    return math.ceil(rho * per_class * classes / size)


@register("profs")
class Profs(BatchSampler):
    """Batches of PROFS (Can et al., arXiv 1907.07585, Algorithm 1): `classes` classes of `per_class` (I) samples.

    The first `representatives` rows are one representative a class; then come the I - 1 examples of each class, first
    those of all classes, then the second ones, and so on. Hand the number to the loss: `loss(x, y, representatives=)`.
    A cycle keeps its representatives for `steps` (M) batches, ceil(rho / p) unless given, with rho=6 the paper's; the
    next cycle takes the next sample of each class's shuffled queue, different ones as long as the class has any left.
    Without `classes`, a batch has as many whole classes as fit into `size` samples (B, representatives included), at
    least 2. If there are fewer classes in all, every batch holds all of them.

    Classes come in random order, each once before any comes again but for those that fill up the last batch of a round.
    mining="hncm": the nearest classes by the representatives' embeddings instead, see `HNCM`: `seeds_per_batch` classes
    drawn at random, and their neighbors; `fill=True` asks for the embeddings of all representatives when a cycle
    begins, otherwise rows are written as they come by. `patience`: a cycle ends when the running loss has stalled for
    so many steps, see `Stall` (the paper's other option), after `steps` at the latest if they are given.

    Ours: examples never are the representative unless the class has no other sample, and repeat only where the class is
    smaller than I; an epoch has ceil(N / B) batches, as many samples as the data, so that it means the same for every
    sampler; cycles go on across epochs. The order of the epochs' batches follows from the seed and, with mining or
    patience, from what was observed: with several ranks each must observe the same.

    >>> sampler = Profs([0, 0, 0, 1, 1, 1, 2, 2], classes=2, per_class=2, rho=2)
    >>> sampler.representatives, sampler.steps, len(sampler)
    (2, 3, 2)
    """

    live = True

    def __init__(
        self,
        labels: object,
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
            raise ValueError(f"per_class must be at least 2, a representative and an example, got {per_class}")
        self._classes, self.per_class = by_class(labels), per_class
        self.representatives: int = min(classes_per_batch(size, classes, per_class), len(self._classes))
        self.size = self.representatives * per_class
        check_positive("rho", rho)
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be at least 1, or None for ceil(rho / p), got {steps}")
        self.stall = None if patience is None else Stall(patience)
        self.steps = steps
        if steps is None and patience is None:
            self.steps = steps_per_cycle(classes=len(self._classes), size=self.size, per_class=per_class, rho=rho)
        if mining is not None:
            check_choice("mining", mining, ("hncm",))
        elif seeds_per_batch != 1 or greedy or fill or not normalize:
            raise ValueError("seeds_per_batch, greedy, fill, normalize are options of mining='hncm', got mining=None")
        if not 1 <= seeds_per_batch <= self.representatives:
            raise ValueError(
                f"seeds_per_batch must be from 1 to {self.representatives} (classes of a batch), got {seeds_per_batch}"
            )
        self.hncm = None if mining is None else HNCM(len(self._classes), greedy=greedy, normalize=normalize)
        self.seeds_per_batch, self.fill = seeds_per_batch, fill
        self.cycle = 0
        self._next = (0, 0)  # cycle and step of the batch to come
        self._last: Indices | None = None  # classes of the batch last yielded
        self._filled = -1  # the last cycle with a fill
        self._start_over()

    def _start_over(self) -> None:
        """What follows from the seed."""
        self._queues = Queues(self._classes, self.seed)
        self._order: tuple[tuple[int, int], Indices] | None = None

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._classes.samples) // self.size)

    def next_batch(self) -> Indices:
        cycle, step = self._next
        rng = np.random.default_rng((self.seed, BATCH, cycle, step))
        chosen = self._random_classes(cycle, step) if self.hncm is None else self._hard_classes(self.hncm, rng)
        heads = self._queues.at(cycle)[chosen]
        sizes = self._classes.sizes[chosen]
        examples = distinct(np.maximum(sizes - 1, 1), self.per_class - 1, rng)
        # places among the others of the class, so those from the representative's own on move up by one
        examples += (examples >= heads[:, None]) & (sizes > 1)[:, None]
        places = self._classes.starts[chosen] + np.concatenate([heads[None], examples.T])
        self.cycle, self._last = cycle, chosen
        self._next = (cycle + 1, 0) if step + 1 == self.steps else (cycle, step + 1)
        batch: Indices = self._classes.samples[places.ravel()]
        return batch

    def _random_classes(self, cycle: int, step: int) -> Indices:
        count, total = self.representatives, len(self._classes)
        number, place = divmod(step, -(-total // count))
        if self._order is None or self._order[0] != (cycle, number):
            rng = np.random.default_rng((self.seed, ORDER, cycle, number))
            self._order = ((cycle, number), rng.permutation(total).astype(np.int64))
        return self._order[1].take(np.arange(place * count, (place + 1) * count), mode="wrap")

    def _hard_classes(self, hncm: HNCM, rng: np.random.Generator) -> Indices:
        seeds = rng.choice(len(self._classes), self.seeds_per_batch, replace=False).tolist()
        return hncm.choose(seeds, self.representatives, rng)

    def observe(self, embeddings: Tensor, loss: Tensor) -> None:
        if self._last is None:
            raise ValueError("observe() hears of the batch last yielded, but there was none yet: ask for one first")
        if self.hncm is not None:
            if len(embeddings) != self.size:
                raise ValueError(
                    f"embeddings must be the {self.size} rows of the batch, of all ranks and in its order, "
                    f"got shape {list(embeddings.shape)}"
                )
            self.hncm.write(self._last, embeddings[: self.representatives])
        if self.stall is not None:
            if self._next[0] == self.cycle and self.stall.observe(float(loss)):
                self._next = (self.cycle + 1, 0)
            if self._next[0] != self.cycle:
                self.stall.reset()

    def wants_fill(self) -> list[int] | None:
        """With fill=True and before the first batch of a cycle: its representatives, one a class."""
        cycle = self._next[0]
        if not self.fill or self._filled == cycle:
            return None
        indices: list[int] = self._classes.samples[self._classes.starts + self._queues.at(cycle)].tolist()
        return indices

    def filled(self, embeddings: Tensor) -> None:
        if self.hncm is None:
            raise ValueError("filled() needs a table to write to: make the sampler with mining='hncm'")
        if len(embeddings) != len(self._classes):
            raise ValueError(
                f"embeddings must have a row for each of {len(self._classes)} classes, got {list(embeddings.shape)}"
            )
        self.hncm.write(np.arange(len(self._classes)), embeddings)
        self._filled = self._next[0]

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict() | {"cycle": self.cycle, "next": list(self._next), "filled": self._filled}
        parts = {"hncm": self.hncm, "stall": self.stall}
        return state | {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, option, part in (("hncm", "mining", self.hncm), ("stall", "patience", self.stall)):
            if (part is None) == (name in state):
                raise ValueError(
                    f"the state was saved {'with' if part is None else 'without'} {option}, "
                    f"this sampler is {'without' if part is None else 'with'}: make it with the same options"
                )
            if part is not None:
                part.load_state_dict(state[name])
        super().load_state_dict(state)
        self.cycle, self._filled, self._last = int(state["cycle"]), int(state["filled"]), None
        cycle, step = state["next"]
        self._next = (int(cycle), int(step))
        self._start_over()


def distinct(sizes: Indices, count: int, rng: np.random.Generator) -> Indices:
    """[len(sizes), count]: each row draws from range(size), different ones, and repeats them where there are fewer.

    >>> distinct(np.array([2, 1]), 3, np.random.default_rng(0))
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    drawn = np.empty((len(sizes), count), dtype=np.int64)
    for k in range(count):
        # the draw counts those not drawn yet, so each earlier one at or below it, in order, moves it up by one
        draw = rng.integers(np.maximum(sizes - k, 1))
        for earlier in np.sort(drawn[:, :k], axis=1).T:
            draw += earlier <= draw
        drawn[:, k] = draw
    return np.take_along_axis(drawn, np.arange(count) % sizes[:, None], axis=1)
