"""Hard negative class mining (HNCM): batches of classes whose representatives lie close together."""

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
    """A table of representative embeddings, one row a class, and the choice of classes by it (PROFS, section 4).

    The paper: store the embeddings of the class representatives, update a row when its representative is sampled,
    O(L). Ours: a batch is a seed class and the classes nearest to it, ties by index. Several seeds share the batch in
    equal parts, each in turn taking the nearest that are still free. `greedy`: add the class closest to any chosen so
    far, one by one, in the manner of N-pair; O(C L). Rows never written are not ranked (nor can they rank others), and
    what is missing then is drawn at random. `normalize` keeps unit rows, whatever lengths the embeddings have.

    Distances are float32, |a|^2 + |b|^2 - 2 a.b: of two classes nearer than 1e-3 either may come first.
    """

    def __init__(self, classes: int, *, greedy: bool = False, normalize: bool = True) -> None:
        self.greedy, self.normalize = greedy, normalize
        self.written: NDArray[np.bool_] = np.zeros(classes, dtype=bool)
        self.table = torch.empty(0)
        self._squares = torch.empty(0)

    def write(self, classes: Indices, embeddings: Tensor) -> None:
        """Overwrite the rows of these classes."""
        check_embeddings("embeddings", embeddings, dim=self.table.shape[1] if self.table.ndim == 2 else None)
        rows = embeddings.detach().to("cpu", torch.float32)
        if self.normalize:
            rows = torch.nn.functional.normalize(rows)
        if self.table.ndim != 2:
            self.table = torch.zeros(len(self.written), rows.shape[1])
            self._squares = torch.zeros(len(self.written))
        where = torch.from_numpy(classes)
        self.table[where] = rows
        self._squares[where] = rows.square().sum(1)
        self.written[classes] = True

    def distances(self, c: int) -> NDArray[np.float32]:
        """[L]: squared distances to class c; inf for rows never written, and everywhere if c's is one."""
        if not self.written[c]:
            return np.full(len(self.written), np.inf, dtype=np.float32)
        # numpy: its product of a matrix and a vector takes half the time of torch's
        table, squares = self.table.numpy(), self._squares.numpy()
        d: NDArray[np.float32] = squares + squares[c] - 2 * (table @ table[c])
        d[~self.written] = np.inf
        return d

    def choose(self, seeds: Sequence[int], count: int, rng: np.random.Generator) -> Indices:
        """`count` different classes: each seed and those near it."""
        free = np.ones(len(self.written), dtype=bool)
        free[list(seeds)] = False
        chosen = self._grow(seeds, count, free) if self.greedy else self._surround(seeds, count, free)
        random = rng.choice(np.flatnonzero(free), count - len(chosen), replace=False)
        return np.concatenate([np.array(chosen, dtype=np.int64), random])

    def _surround(self, seeds: Sequence[int], count: int, free: NDArray[np.bool_]) -> list[int]:
        chosen: list[int] = []
        for k, seed in enumerate(seeds):
            share = count // len(seeds) + (k < count % len(seeds))
            near = closest(np.where(free, self.distances(seed), np.inf), share - 1)
            free[near] = False
            chosen += [seed, *near.tolist()]
        return chosen

    def _grow(self, seeds: Sequence[int], count: int, free: NDArray[np.bool_]) -> list[int]:
        chosen = list(seeds)
        reach = np.min([self.distances(seed) for seed in seeds], axis=0)
        while len(chosen) < count:
            reach[~free] = np.inf
            c = int(np.argmin(reach))
            if reach[c] == np.inf:
                break
            chosen.append(c)
            free[c] = False
            reach = np.minimum(reach, self.distances(c))
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """The table and which rows were written."""
        written = torch.from_numpy(self.written.copy())
        return {"table": self.table.clone(), "squares": self._squares.clone(), "written": written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the table of a state."""
        if len(state["written"]) != len(self.written):
            raise ValueError(
                f"the state's table has {len(state['written'])} classes, the labels {len(self.written)}: "
                "resume on the data it was saved on"
            )
        self.written = state["written"].numpy().astype(bool)
        self.table, self._squares = state["table"].clone(), state["squares"].clone()


def closest(distances: NDArray[np.float32], count: int) -> Indices:
    """The indices of the `count` smallest distances below inf (all, if they are fewer), in order, ties by index.

    >>> closest(np.array([2, 0, np.inf, 2], dtype=np.float32), 2)
    array([1, 0])
    """
    count = min(count, int(np.count_nonzero(distances < np.inf)))
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    near = np.flatnonzero(distances <= np.partition(distances, count - 1)[count - 1])
    return near[np.argsort(distances[near], kind="stable")][:count]
