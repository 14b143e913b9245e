"""A sampler of indices that draws m samples per class."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Sampler

from nearfar.compat.arguments import absent
from nearfar.samplers import PK

__all__ = ["MPerClassSampler"]


class MPerClassSampler(Sampler[int]):
    """The batches of `nearfar.samplers.PK` as a sequence of indices: batch_size / m classes with m samples each.

    Unlike in pytorch-metric-learning, every class is drawn once before any class is drawn again. The seed is drawn from
    NumPy's global random state, as in pytorch-metric-learning.

    Args:
        labels: The label of every sample.
        m: Number of samples per class.
        batch_size: Number of samples per batch. By default, a batch has m samples of every class.
        length_before_new_iter: Number of indices per iteration, rounded down to a multiple of the batch size. A value
            below the batch size is an error if `batch_size` is given; otherwise it is not rounded.
    """

    def __init__(
        self, labels: Any, m: int, batch_size: int | None = None, length_before_new_iter: int = 100000
    ) -> None:
        self.labels, self.m_per_class = labels, int(m)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.classes = len(PK(labels, classes=1, per_class=1).members)
        length = int(length_before_new_iter)
        whole = self.m_per_class * self.classes
        if self.batch_size is None:
            self.list_size = length - length % whole if whole < length else length
            return
        if length < self.batch_size:
            raise ValueError(f"length_before_new_iter must be at least batch_size={batch_size}, got {length}")
        if whole < self.batch_size:
            raise ValueError(
                f"batch_size must be at most m x classes = {m} x {self.classes} = {whole}, got {batch_size}"
            )
        if self.batch_size % self.m_per_class:
            raise ValueError(f"batch_size must be a multiple of m={m}, got {batch_size}")
        self.list_size = length - length % self.batch_size

    def __len__(self) -> int:
        return self.list_size

    def __iter__(self) -> Iterator[int]:
        classes = self.classes if self.batch_size is None else self.batch_size // self.m_per_class
        seed = int(np.random.randint(2**31))
        batches = PK(self.labels, classes=classes, per_class=self.m_per_class, epoch="classes", seed=seed)
        epochs = chain.from_iterable(repeat(batches))  # every pass over `batches` is a new epoch
        return islice(chain.from_iterable(epochs), self.list_size)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise absent("samplers", name, __all__)
