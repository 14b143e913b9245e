"""Hard negative class mining (HNCM): fill each batch with classes that have similar embeddings.

One sample of each class, its representative, stands for the class (see `nearfar.samplers.profs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.samplers.class_index import Indices
from nearfar.validation import check_embeddings


class HNCM:
    """Choose the classes of a batch from a table with the embedding of each class's representative (PROFS, section 4).

    As in the paper, the table has one embedding per class, which is updated whenever the representative of the class is
    sampled. Memory is O(L) for L classes.

    The rule for choosing classes is our own. A batch consists of a randomly chosen class, called the seed, and the
    classes nearest to it. Of two equally near classes, the one with the lower index comes first. With several seeds,
    each seed gets an equal part of the batch. The seeds are processed in turn, and each takes the nearest classes that
    are not taken yet. Classes without an embedding in the table are never taken as neighbors. If there are too few
    neighbors, random classes fill the batch.

    Squared distances are computed as |a|^2 + |b|^2 - 2 a.b in float32. Rounding may swap two classes whose distances
    differ by less than 1e-3.

    Args:
        classes: Number of classes, L.
        greedy: If True, add one class at a time, always the class that is closest to any class chosen so far, as in
            the N-pair paper. This takes O(C L) time for C classes per batch.
        normalize: Whether to scale the embeddings to norm 1.
    """

    def __init__(self, classes: int, *, greedy: bool = False, normalize: bool = True) -> None:
        self.greedy, self.normalize = greedy, normalize
        self.written: NDArray[np.bool_] = np.zeros(classes, dtype=bool)
        self.table = torch.empty(0)
        self._squares = torch.empty(0)

    def write(self, classes: Indices, embeddings: Tensor) -> None:
        """Store the embeddings of these classes in the table, replacing earlier ones."""
        check_embeddings("embeddings", embeddings, dim=self.table.shape[1] if self.table.ndim == 2 else None)
        x = embeddings.detach().to("cpu", torch.float32)
        if self.normalize:
            x = torch.nn.functional.normalize(x)
        if self.table.ndim != 2:
            self.table = torch.zeros(len(self.written), x.shape[1])
            self._squares = torch.zeros(len(self.written))
        index = torch.from_numpy(classes)
        self.table[index] = x
        self._squares[index] = x.square().sum(1)
        self.written[classes] = True

    def distances(self, c: int) -> NDArray[np.float32]:
        """Return the squared distances of all L classes from class c, [L].

        The distance of a class without a stored embedding is inf. If class c has none, all distances are inf.
        """
        if not self.written[c]:
            return np.full(len(self.written), np.inf, dtype=np.float32)
        # NumPy's matrix-vector product takes half the time of torch's.
        table, squares = self.table.numpy(), self._squares.numpy()
        d: NDArray[np.float32] = squares + squares[c] - 2 * (table @ table[c])
        d[~self.written] = np.inf
        return d

    def choose(self, seeds: Sequence[int], count: int, rng: np.random.Generator) -> Indices:
        """Return `count` different classes: the seeds, the classes near them, and random classes for the rest."""
        free = np.ones(len(self.written), dtype=bool)
        free[list(seeds)] = False
        chosen = self._choose_greedily(seeds, count, free) if self.greedy else self._choose_around(seeds, count, free)
        random = rng.choice(np.flatnonzero(free), count - len(chosen), replace=False)
        return np.concatenate([np.array(chosen, dtype=np.int64), random])

    def _choose_around(self, seeds: Sequence[int], count: int, free: NDArray[np.bool_]) -> list[int]:
        chosen: list[int] = []
        for k, seed in enumerate(seeds):
            share = count // len(seeds) + (k < count % len(seeds))
            near = closest(np.where(free, self.distances(seed), np.inf), share - 1)
            free[near] = False
            chosen += [seed, *near.tolist()]
        return chosen

    def _choose_greedily(self, seeds: Sequence[int], count: int, free: NDArray[np.bool_]) -> list[int]:
        chosen = list(seeds)
        nearest = np.min([self.distances(seed) for seed in seeds], axis=0)
        while len(chosen) < count:
            nearest[~free] = np.inf
            c = int(np.argmin(nearest))
            if nearest[c] == np.inf:
                break
            chosen.append(c)
            free[c] = False
            nearest = np.minimum(nearest, self.distances(c))
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Return the table, the squared norms of its rows, and a mask that marks the classes with an embedding."""
        written = torch.from_numpy(self.written.copy())
        return {"table": self.table.clone(), "squares": self._squares.clone(), "written": written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the table, the squared norms and the mask from a state."""
        if len(state["written"]) != len(self.written):
            raise ValueError(
                f"the state's table has {len(state['written'])} classes, but the labels have {len(self.written)}: "
                "resume with the data of the saved run"
            )
        self.written = state["written"].numpy().astype(bool)
        self.table, self._squares = state["table"].clone(), state["squares"].clone()


def closest(distances: NDArray[np.float32], count: int) -> Indices:
    """Return the indices of the `count` smallest finite distances, or all of them if there are fewer.

    They are in ascending order of the distance, and of the index if distances are equal.

    >>> closest(np.array([2, 0, np.inf, 2], dtype=np.float32), 2)
    array([1, 0])
    """
    count = min(count, int(np.count_nonzero(distances < np.inf)))
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    near = np.flatnonzero(distances <= np.partition(distances, count - 1)[count - 1])
    return near[np.argsort(distances[near], kind="stable")][:count]
