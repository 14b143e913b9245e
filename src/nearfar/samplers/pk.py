"""PK batches: P classes with K samples each."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices, by_class, classes_per_batch
from nearfar.validation import check_choice


@register("pk")
class PK(BatchSampler):
    """Batches of `classes` (P) different classes with `per_class` (K) samples each, grouped by class.

    Without `classes`, a batch has as many whole classes as fit into `size` samples, at least 2.

    epoch="samples" (default): every sample comes at least once an epoch. Each class is shuffled and cut into groups of
    K; a group that is not full is filled with other samples of its class, different ones as long as there are any, and
    a class of fewer than K samples repeats them. A batch draws its classes by how many groups they have left; toward
    the end, where fewer than P classes have any, it is filled with groups of other classes drawn anew.
    epoch="classes": every class comes once an epoch with K of its samples; the last batch is filled with other classes.

    Fewer than P classes in all: every batch holds all of them.

    >>> sampler = PK([0, 0, 0, 1, 1, 2], classes=2, per_class=2)
    >>> sorted({index for batch in sampler for index in batch})
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        labels: object,
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
        self.members = by_class(labels).members
        self.classes = min(classes_per_batch(size, classes, per_class), len(self.members))
        self.per_class = per_class
        self.size = self.classes * per_class
        self.mode = check_choice("epoch", epoch, ("samples", "classes"))

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        p = self.classes
        if self.mode == "classes":
            rows = rng.permutation(len(self.members))
            chosen = [_fill(rows[start : start + p], p, len(self.members), rng) for start in range(0, len(rows), p)]
            return [np.concatenate([self._draw(c, rng) for c in batch]) for batch in chosen]
        groups = [self._groups(c, rng) for c in range(len(self.members))]
        left = np.array([len(g) for g in groups])
        batches = []
        while (waiting := int(np.count_nonzero(left))) > 0:
            # drawing without replacement by weight: the largest of log weight + Gumbel noise
            keys = np.where(left > 0, np.log(np.maximum(left, 1)) + rng.gumbel(size=len(left)), -np.inf)
            take = np.argpartition(-keys, min(p, waiting) - 1)[: min(p, waiting)]
            parts = [groups[c].pop() for c in take]
            left[take] -= 1
            parts += [self._draw(c, rng) for c in _fill(take, p, len(left), rng)[len(take) :]]
            batches.append(np.concatenate(parts))
        return batches

    def _groups(self, c: int, rng: np.random.Generator) -> list[Indices]:
        """All samples of a class in groups of K, the last one filled up."""
        order = rng.permutation(self.members[c])
        cuts = [order[start : start + self.per_class] for start in range(0, len(order), self.per_class)]
        missing = self.per_class - len(cuts[-1])
        if missing:
            others = order[: len(order) - len(cuts[-1])]
            extra = rng.permutation(others)[:missing]
            cuts[-1] = np.resize(np.concatenate([cuts[-1], extra]), self.per_class)
        return cuts

    def _draw(self, c: int, rng: np.random.Generator) -> Indices:
        """K samples of a class, different ones as long as there are any."""
        return np.resize(rng.permutation(self.members[c])[: self.per_class], self.per_class)


def _fill(chosen: Indices, p: int, classes: int, rng: np.random.Generator) -> Indices:
    """The chosen classes, and as many others drawn at random as make p."""
    if len(chosen) == p:
        return chosen
    others = np.setdiff1d(np.arange(classes), chosen)
    return np.concatenate([chosen, rng.permutation(others)[: p - len(chosen)]])
