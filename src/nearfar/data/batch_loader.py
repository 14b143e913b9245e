"""Load batches of a dataset in a given order, with worker processes for image files."""

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
    """A batch of B samples: the inputs `x` [B, ...], their `labels` [B] and their row numbers `indices` [B]."""

    x: Tensor
    labels: Tensor
    indices: Tensor


class BatchLoader:
    """Loader of batches with given row numbers. The result does not depend on the number of workers.

    >>> import numpy as np
    >>> from nearfar.data import Manifest, create_dataset
    >>> vectors = Manifest(labels=[0, 1], classes=("a", "b"), split=["train"] * 2, features=np.eye(2))
    >>> [batch.labels.tolist() for batch in BatchLoader(create_dataset(vectors)).load([[1, 0], [0]])]
    [[1, 0], [0]]

    Only image files are read by workers. Vectors and arrays are read in the calling process, which is faster than
    passing them between processes. Workers run until `close` is called or the loader is deleted.

    With workers, up to 2 x workers batches are requested from the batch sampler in advance. During an epoch, the state
    of the sampler is therefore ahead of training: save it at the start of an epoch.

    Args:
        dataset: Dataset of the samples.
        workers: Number of worker processes for image files. With 0, images are read in the calling process.
        pin_memory: Whether batches from workers are copied to pinned memory.
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
                # by default, a DataLoader seeds its workers from the global generator, which would change the training
                generator=torch.Generator().manual_seed(0),
            )

    def load(
        self, batches: Iterable[Sequence[int]], *, epoch: int = 0, train: bool = True, read_ahead: bool = True
    ) -> Iterator[Batch]:
        """Yield one batch for each list of row numbers, in order. A new call invalidates earlier iterators.

        Args:
            batches: Lists of row numbers.
            epoch: Epoch that seeds the augmentation.
            train: Whether to use the training transform or the evaluation transform.
            read_ahead: Whether workers read batches in advance. Use False for samplers that depend on the training
                state: each batch is then read when it is needed, by as many threads as there are workers.
        """
        jobs = ((epoch, train, _ints(rows)) for rows in batches)
        if self._loader is not None and read_ahead:
            self._jobs.source = jobs
            for x, loaded, skipped, failure in self._loader:
                if failure:
                    raise NearfarError(failure)
                self.skipped.update(skipped)
                yield self._batch(x, loaded)
        elif isinstance(self.dataset, ImageDataset):
            for _, _, rows in jobs:
                x, loaded, skipped = self.dataset.read(rows, epoch=epoch, train=train, threads=max(1, self.workers))
                self.skipped.update(skipped)
                yield self._batch(x, loaded)
        else:
            for _, _, rows in jobs:
                yield self._batch(self.dataset.fetch(rows, epoch=epoch, train=train), rows)

    def load_all(self, rows: Sequence[int] | Tensor | None = None, *, batch_size: int = 256) -> Iterator[Batch]:
        """Yield batches of all rows, or of `rows`, once and in order, with the evaluation transform."""
        selected = _ints(range(len(self.dataset)) if rows is None else rows)
        return self.load((selected[i : i + batch_size] for i in range(0, len(selected), batch_size)), train=False)

    def _batch(self, x: Tensor, rows: list[int]) -> Batch:
        indices = torch.tensor(rows)
        return Batch(x, self.dataset.labels[indices], indices)

    def close(self) -> None:
        """Stop the workers."""
        self._loader = None
        self._jobs.source = iter(())


class _Jobs(Sampler[Job]):
    """Sampler that passes the jobs of the current call of `load` to the DataLoader."""

    def __init__(self) -> None:
        self.source: Iterator[Job] = iter(())

    def __iter__(self) -> Iterator[Job]:
        return self.source


Read = tuple[Tensor | None, list[int], dict[int, str], str]


class _BatchReader(Dataset[Read]):
    """Dataset whose items are whole batches. A job contains the epoch and the rows, so workers have no state."""

    def __init__(self, images: ImageDataset) -> None:
        self.images = images

    def __getitem__(self, job: Job) -> Read:
        epoch, train, rows = job
        try:
            return *self.images.read(rows, epoch=epoch, train=train), ""
        except NearfarError as error:
            # return the message, because torch would replace an exception by one with the traceback of the worker
            return None, [], {}, str(error)


def _ints(rows: Iterable[int] | Tensor) -> list[int]:
    return [int(row) for row in (rows.tolist() if isinstance(rows, Tensor) else rows)]
