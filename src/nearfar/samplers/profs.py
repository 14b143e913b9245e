"""PROFS batches: every class keeps one representative for a cycle of M steps."""

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

# separate the random numbers of each purpose; see also QUEUE in `nearfar.samplers.representatives`
ORDER, BATCH = 2, 3


def steps_per_cycle(*, classes: int, size: int, per_class: int, rho: float = 6.0) -> int:
    """Return M = ceil(rho / p) with p = B / (I L), after which each representative was used rho times on average.

    B is the batch size, I the samples per class and L the number of classes (PROFS, section 5.4).

    >>> steps_per_cycle(classes=11318, size=128, per_class=2)
    1062
    """
    return math.ceil(rho * per_class * classes / size)


@register("profs")
class Profs(BatchSampler):
    """Batches of PROFS (Can et al., arXiv 1907.07585, Algorithm 1).

    The first `representatives` samples of a batch are one representative per class. The I - 1 examples of each class
    follow: the first of every class, then the second of every class, and so on. Pass the number to the loss:
    `loss(x, y, representatives=sampler.representatives)`.

    A cycle keeps its representatives for M batches. The next cycle takes the next sample from each class's shuffled
    queue, so a class repeats a representative only after all its samples had a turn. Cycles continue across epochs.

    Classes come in random order, each once per round; others fill the last batch of a round. With mining="hncm" the
    embeddings of the representatives decide instead (see `HNCM`).

    These choices are ours: an example is never the representative unless the class has no other sample; examples repeat
    only in classes smaller than I; an epoch has ceil(N / B) batches, so it means the same for every sampler.

    The batches follow from the seed and, with `mining` or `patience`, from what `observe` received. Every process must
    observe the same.

    Args:
        labels: Labels [N], integers or strings.
        size: Samples per batch, B, with the representatives. It is rounded down to whole classes, at least 2 classes.
            Ignored if `classes` is given.
        classes: Classes per batch. With fewer classes in all, every batch has all of them.
        per_class: Samples per class, I, with the representative.
        rho: How often a cycle uses each representative, on average. The default is the paper's.
        steps: Batches per cycle, M. The default is ceil(rho / p), see `steps_per_cycle`, or no limit with `patience`.
        mining: "hncm" for hard negative class mining, or None.
        seeds_per_batch: Number of random classes in a batch whose neighbors HNCM adds.
        greedy: See `HNCM`.
        fill: Whether to request the embeddings of all representatives when a cycle begins. Otherwise the table is
            written from the batches.
        normalize: See `HNCM`.
        patience: End a cycle after this many steps without progress of the running loss (see `Plateau`; the paper's
            other option).
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
            raise ValueError(f"per_class must be at least 2, a representative and an example, got {per_class}")
        self._classes, self.per_class = group_by_class(labels), per_class
        self.representatives: int = min(classes_per_batch(size, classes, per_class), len(self._classes))
        self.size = self.representatives * per_class
        check_positive("rho", rho)
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be at least 1, or None for ceil(rho / p), got {steps}")
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
        self._filled = -1  # the last cycle whose representatives were all embedded
        self._reset_draws()

    def extra_repr(self) -> str:
        options = {"steps": self.steps, "mining": None if self.hncm is None else "hncm"}
        samples = len(self._classes.samples)
        text = f"samples={samples}, classes={self.representatives}, per_class={self.per_class}"
        return ", ".join([text, *(f"{key}={value!r}" for key, value in options.items() if value is not None)])

    def _reset_draws(self) -> None:
        """Reset everything that is drawn from the seed."""
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
        # offsets among the other samples of the class: those from the representative on move up by one
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
            raise ValueError("observe() describes the last batch, but none was yielded yet: request one first")
        if self.hncm is not None:
            if len(embeddings) != self.size:
                raise ValueError(
                    f"embeddings must be those of the {self.size} samples of the global batch, in its order, "
                    f"got shape {list(embeddings.shape)}"
                )
            self.hncm.write(self._last, embeddings[: self.representatives])
        if self.plateau is not None:
            if self._next[0] == self.cycle and self.plateau.observe(float(loss)):
                self._next = (self.cycle + 1, 0)
            if self._next[0] != self.cycle:
                self.plateau.reset()

    def samples_to_embed(self) -> list[int] | None:
        """Return all representatives before the first batch of a cycle if `fill` is set, else None."""
        cycle = self._next[0]
        if not self.fill or self._filled == cycle:
            return None
        indices: list[int] = self._classes.samples[self._classes.starts + self._queues.at(cycle)].tolist()
        return indices

    def write_embeddings(self, embeddings: Tensor) -> None:
        if self.hncm is None:
            raise ValueError("write_embeddings() needs a table: create the sampler with mining='hncm'")
        if len(embeddings) != len(self._classes):
            raise ValueError(
                f"embeddings must have one vector per class, {len(self._classes)}, got shape {list(embeddings.shape)}"
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
                    f"the state was saved {'with' if part is None else 'without'} {option}, this sampler is "
                    f"{'without' if part is None else 'with'}: create it with the same options"
                )
            if part is not None:
                part.load_state_dict(state[name])
        super().load_state_dict(state)
        self.cycle, self._filled, self._last = int(state["cycle"]), int(state["filled"]), None
        cycle, step = state["next"]
        self._next = (int(cycle), int(step))
        self._reset_draws()


def draw_distinct(sizes: Indices, count: int, rng: np.random.Generator) -> Indices:
    """Draw `count` numbers from range(size) for each size, [len(sizes), count], repeating only where size < count.

    >>> draw_distinct(np.array([2, 1]), 3, np.random.default_rng(0))
    array([[1, 0, 1],
           [0, 0, 0]])
    """
    drawn = np.empty((len(sizes), count), dtype=np.int64)
    for k in range(count):
        # the draw is an index into the numbers not drawn yet: each earlier draw at or below it moves it up by one
        draw = rng.integers(np.maximum(sizes - k, 1))
        for earlier in np.sort(drawn[:, :k], axis=1).T:
            draw += earlier <= draw
        drawn[:, k] = draw
    return np.take_along_axis(drawn, np.arange(count) % sizes[:, None], axis=1)
