"""The pairs sampler, which puts both samples of each pair into the same batch, for data without classes."""

from __future__ import annotations

import numpy as np

from nearfar.samplers.batch_sampler import BatchSampler, register
from nearfar.samplers.class_index import Indices
from nearfar.validation import Labels, as_labels


@register("pairs")
class PairBatches(BatchSampler):
    """Batches of at most `size` samples that are made of pairs: both samples of a pair are in the same batch.

    An epoch visits every pair once, in random order. If the last batch has fewer than size // 2 samples, it is dropped,
    unless it is the only batch. A batch contains each sample only once, even if the sample is in several of its pairs.

    Args:
        labels: Labels [N]. Their values are ignored; only the number of samples N is used.
        pairs: The indices of the two samples of each pair [P, 2].
        size: Samples per batch, at least 4.
        seed: See `BatchSampler`.
        rank: See `BatchSampler`.
        world: See `BatchSampler`.

    >>> sampler = PairBatches([0, 0, 1, 1, 2], pairs=np.array([[0, 1], [2, 3], [3, 4]]), size=4)
    >>> sampler
    PairBatches(samples=5, pairs=3, size=4, seed=0)
    >>> sum(len(batch) for batch in sampler) in (5, 6)
    True
    """

    def __init__(
        self,
        labels: Labels,
        *,
        pairs: Indices | None = None,
        size: int = 128,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(seed=seed, rank=rank, world=world)
        if pairs is None or not len(pairs):
            raise ValueError(
                "the sampler 'pairs' needs a table of pairs: pass the argument pairs, train on a CSV file with the "
                "columns a and b (or text_a and text_b), or use another sampler"
            )
        if size < 4:
            raise ValueError(f"size must be at least 4, so that a batch has two pairs, got size={size}")
        self.samples, self.pairs = len(as_labels(labels)), np.asarray(pairs, dtype=np.int64)
        self.size = min(size, self.samples)

    def extra_repr(self) -> str:
        return f"samples={self.samples}, pairs={len(self.pairs)}, size={self.size}"

    def plan(self, rng: np.random.Generator) -> list[Indices]:
        batches: list[dict[int, None]] = [{}]
        for pair in self.pairs[rng.permutation(len(self.pairs))].tolist():
            if len(batches[-1].keys() | set(pair)) > self.size:
                batches.append({})
            batches[-1].update(dict.fromkeys(pair))
        if len(batches) > 1 and len(batches[-1]) < self.size // 2:
            batches.pop()  # a small batch has few negatives; the next epoch drops other pairs
        return [np.array(list(batch), dtype=np.int64) for batch in batches]
