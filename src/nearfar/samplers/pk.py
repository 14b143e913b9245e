"""The PK sampler: batches of P classes with K samples each."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices, classes_per_batch, group_by_class
from nearfar.validation import Labels, check_choice


@register("pk")
class PK(BatchSampler):
    """Batches of P different classes with K samples each. The samples of a class are next to each other.

    epoch="samples" visits every sample at least once per epoch. Each class is shuffled and split into groups of K
    samples. If the last group is incomplete, other samples of its class fill it; a class with fewer than K samples
    repeats them. Each batch takes one group from each of P classes. The classes are drawn at random, with probabilities
    proportional to the number of groups they have left. When fewer than P classes have groups left, random other
    classes fill the batch with K random samples each.

    epoch="classes" visits every class once per epoch, with K random samples. If the last batch has fewer than P
    classes, random other classes fill it.

    Args:
        labels: Labels [N], integers or strings.
        size: Samples per batch. It is rounded down to a multiple of K, but a batch has at least 2 classes. Ignored if
            `classes` is given.
        classes: Classes per batch, P. If the labels have fewer classes, every batch contains all of them.
        per_class: Samples per class, K.
        epoch: "samples" or "classes".
        seed: See `BatchSampler`.
        rank: See `BatchSampler`.
        world: See `BatchSampler`.

    >>> sampler = PK([0, 0, 0, 1, 1, 2], classes=2, per_class=2)
    >>> sampler
    PK(samples=6, classes=2, per_class=2, epoch='samples', seed=0)
    >>> sorted({index for batch in sampler for index in batch})
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        labels: Labels,
        *,
        size: int = 128,
        classes: int | None = None,
        per_class: int = 4,
        epoch: str = "samples",
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
        self.members = group_by_class(labels).members
        self.classes = min(classes_per_batch(size, classes, per_class), len(self.members))
        self.per_class = per_class
        self.size = self.classes * per_class
        self.epoch_kind = check_choice("epoch", epoch, ("samples", "classes"))

    def extra_repr(self) -> str:
        samples = sum(map(len, self.members))
        return f"samples={samples}, classes={self.classes}, per_class={self.per_class}, epoch={self.epoch_kind!r}"

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        p = self.classes
        if self.epoch_kind == "classes":
            order = rng.permutation(len(self.members))
            chosen = [_fill(order[start : start + p], p, len(self.members), rng) for start in range(0, len(order), p)]
            return [np.concatenate([self._draw(c, rng) for c in batch]) for batch in chosen]
        groups = [self._groups(c, rng) for c in range(len(self.members))]
        left = np.array([len(g) for g in groups])
        batches = []
        while (waiting := int(np.count_nonzero(left))) > 0:
            # Taking the largest values of log(weight) + Gumbel noise is a weighted draw without replacement.
            keys = np.where(left > 0, np.log(np.maximum(left, 1)) + rng.gumbel(size=len(left)), -np.inf)
            take = np.argpartition(-keys, min(p, waiting) - 1)[: min(p, waiting)]
            parts = [groups[c].pop() for c in take]
            left[take] -= 1
            parts += [self._draw(c, rng) for c in _fill(take, p, len(left), rng)[len(take) :]]
            batches.append(np.concatenate(parts))
        return batches

    def _groups(self, c: int, rng: np.random.Generator) -> list[Indices]:
        """Split the samples of a class into random groups of K. Repeated samples complete the last group."""
        order = rng.permutation(self.members[c])
        groups = [order[start : start + self.per_class] for start in range(0, len(order), self.per_class)]
        missing = self.per_class - len(groups[-1])
        if missing:
            others = order[: len(order) - len(groups[-1])]
            extra = rng.permutation(others)[:missing]
            groups[-1] = np.resize(np.concatenate([groups[-1], extra]), self.per_class)
        return groups

    def _draw(self, c: int, rng: np.random.Generator) -> Indices:
        """Draw K random samples of a class. Samples repeat only if the class has fewer than K."""
        return np.resize(rng.permutation(self.members[c])[: self.per_class], self.per_class)


def _fill(chosen: Indices, p: int, classes: int, rng: np.random.Generator) -> Indices:
    """Return the chosen classes, followed by random other classes up to a total of p."""
    if len(chosen) == p:
        return chosen
    others = np.setdiff1d(np.arange(classes), chosen)
    return np.concatenate([chosen, rng.permutation(others)[: p - len(chosen)]])
