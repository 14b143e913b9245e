"""Batches in the order they are asked for, prepared by workers where that pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from nearfar.data.datasets import BatchDataset, ImageDataset
from nearfar.errors import NearfarError

Job = tuple[int, bool, list[int]]


class Batch(NamedTuple):
    """`x` [B, ...], `labels` [B] and `indices` [B] (rows of the manifest)."""

    x: Tensor
    labels: Tensor
    indices: Tensor


class BatchLoader:
    """Turns lists of rows into batches; a sample is the same whatever the number of workers.

    >>> import numpy as np
    >>> from nearfar.data import Manifest, create_dataset
    >>> vectors = Manifest(labels=[0, 1], classes=("a", "b"), split=["train"] * 2, features=np.eye(2))
    >>> [batch.labels.tolist() for batch in BatchLoader(create_dataset(vectors)).load([[1, 0], [0]])]
    [[1, 0], [0]]

    Workers are for picture files only and live as long as the loader (`close`, or leave it to the garbage collector).
    Vectors and arrays are fetched in this process, a batch at a time, which is faster than any hand-over.

    With workers the iterable of batches is read up to 2 x workers ahead of what was yielded: a sampler's state is then
    ahead as well, so take it at the start of an epoch. With `read_ahead=False` a batch is asked for when it is wanted,
    for samplers that look at what training does, and as many threads share its pictures.
    """

    def __init__(self, dataset: BatchDataset, *, workers: int = 0, pin_memory: bool = False) -> None:
        if workers < 0:
            raise ValueError(f"workers must be 0 or more, got {workers}")
        self.dataset, self.workers = dataset, workers
        self.skipped: dict[int, str] = dataset.skipped
        self._jobs = _Jobs()
        self._loader: DataLoader[Any] | None = None
        if isinstance(dataset, ImageDataset) and workers:
            self._loader = DataLoader(
                _BatchReader(dataset),
                batch_size=None,
                sampler=self._jobs,
                num_workers=workers,
                persistent_workers=True,
                pin_memory=pin_memory,
                # a worker's own seed would be drawn from the global generator, which belongs to the loop
                generator=torch.Generator().manual_seed(0),
            )

    def load(
        self, batches: Iterable[Sequence[int]], *, epoch: int = 0, train: bool = True, read_ahead: bool = True
    ) -> Iterator[Batch]:
        """A batch for each list of rows, in order. A new call ends the one before."""
        jobs = ((epoch, train, _ints(rows)) for rows in batches)
        if self._loader is not None and read_ahead:
            self._jobs.source = jobs
            for x, kept, skipped, failure in self._loader:
                if failure:
                    raise NearfarError(failure)
                self.skipped.update(skipped)
                yield self._batch(x, kept)
        elif isinstance(self.dataset, ImageDataset):
            for _, _, rows in jobs:
                x, kept, skipped = self.dataset.read(rows, epoch=epoch, train=train, threads=max(1, self.workers))
                self.skipped.update(skipped)
                yield self._batch(x, kept)
        else:
            for _, _, rows in jobs:
                yield self._batch(self.dataset.fetch(rows, epoch=epoch, train=train), rows)

    def load_all(self, rows: Sequence[int] | Tensor | None = None, *, batch_size: int = 256) -> Iterator[Batch]:
        """Every row (or these) once and in order, with the evaluation transform."""
        chosen = _ints(range(len(self.dataset)) if rows is None else rows)
        return self.load((chosen[i : i + batch_size] for i in range(0, len(chosen), batch_size)), train=False)

    def _batch(self, x: Tensor, rows: list[int]) -> Batch:
        indices = torch.tensor(rows)
        return Batch(x, self.dataset.labels[indices], indices)

    def close(self) -> None:
        """Ends the workers."""
        self._loader = None
        self._jobs.source = iter(())


class _Jobs(Sampler[Job]):
    """The jobs of the current epoch; a DataLoader asks for a new iterator each time it is run."""

    def __init__(self) -> None:
        self.source: Iterator[Job] = iter(())

    def __iter__(self) -> Iterator[Job]:
        return self.source


Read = tuple[Tensor | None, list[int], dict[int, str], str]


class _BatchReader(Dataset[Read]):
    """Runs in a worker: one job is one batch, so the epoch travels with the rows and no state needs to."""

    def __init__(self, pictures: ImageDataset) -> None:
        self.pictures = pictures

    def __getitem__(self, job: Job) -> Read:
        epoch, train, rows = job
        try:
            return *self.pictures.read(rows, epoch=epoch, train=train), ""
        except NearfarError as error:
            # as a value: torch would wrap the exception into the worker's traceback
            return None, [], {}, str(error)


def _ints(rows: Iterable[int] | Tensor) -> list[int]:
    return [int(row) for row in (rows.tolist() if isinstance(rows, Tensor) else rows)]
