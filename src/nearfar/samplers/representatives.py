"""The representatives of PROFS: one sample of every class per cycle, taken from shuffled queues."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.class_index import ClassIndex, Indices

# This number is part of the seed, so that the draws here are independent of those in `nearfar.samplers.profs`.
QUEUE = 1


class RepresentativeQueues:
    """A shuffled queue of samples for every class. An empty queue is filled with a new shuffle.

    In a class of n samples, cycle k takes sample k mod n of shuffle number k div n. A shuffle therefore uses every
    sample of the class once before the next shuffle begins. The representatives depend only on the seed and the cycle.
    The current shuffles are cached.
    """

    def __init__(self, classes: ClassIndex, seed: int) -> None:
        self.classes, self.seed = classes, seed
        self._class_of = np.repeat(np.arange(len(classes)), classes.sizes)
        self._offsets = np.arange(len(self._class_of)) - classes.starts[self._class_of]
        self._order = self._offsets.copy()
        self._shuffles = np.full(len(classes), -1)
        self._cached: tuple[int, Indices] | None = None

    def at(self, cycle: int) -> Indices:
        """Return the representative of every class in a cycle, as an offset into the samples of that class."""
        if self._cached is None or self._cached[0] != cycle:
            self._cached = (cycle, self._take(cycle))
        return self._cached[1]

    def _take(self, cycle: int) -> Indices:
        shuffles, heads = np.divmod(cycle, self.classes.sizes)
        is_new = shuffles != self._shuffles
        for number in np.unique(shuffles[is_new]).tolist():
            rows = np.flatnonzero((is_new & (shuffles == number))[self._class_of])
            keys = np.random.default_rng((self.seed, QUEUE, number)).random(len(self._class_of))
            self._order[rows] = self._offsets[rows[np.lexsort((keys[rows], self._class_of[rows]))]]
        self._shuffles = shuffles
        taken: Indices = self._order[self.classes.starts + heads]
        return taken
