"""Representatives: one sample of every class, another one each cycle, from shuffled queues."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.class_index import Classes, Indices

QUEUE = 1  # sets its random numbers apart from those of the batches


class Queues:
    """For every class a shuffled queue of its samples, shuffled anew when it is empty.

    Cycle k takes sample k mod n of the shuffle number k div n of a class of n samples: n cycles in a row have different
    representatives, and all of it follows from seed and cycle. Shuffles in use are kept.
    """

    def __init__(self, classes: Classes, seed: int) -> None:
        self.classes, self.seed = classes, seed
        self._owner = np.repeat(np.arange(len(classes)), classes.sizes)
        self._places = np.arange(len(self._owner)) - classes.starts[self._owner]
        self._order = self._places.copy()
        self._passes = np.full(len(classes), -1)
        self._taken: tuple[int, Indices] | None = None

    def at(self, cycle: int) -> Indices:
        """[L]: each class's representative of a cycle, by its place among the samples of the class."""
        if self._taken is None or self._taken[0] != cycle:
            self._taken = (cycle, self._take(cycle))
        return self._taken[1]

    def _take(self, cycle: int) -> Indices:
        passes, heads = np.divmod(cycle, self.classes.sizes)
        anew = passes != self._passes
        for number in np.unique(passes[anew]).tolist():
            rows = np.flatnonzero((anew & (passes == number))[self._owner])
            keys = np.random.default_rng((self.seed, QUEUE, number)).random(len(self._owner))
            self._order[rows] = self._places[rows[np.lexsort((keys[rows], self._owner[rows]))]]
        self._passes = passes
        taken: Indices = self._order[self.classes.starts + heads]
        return taken
