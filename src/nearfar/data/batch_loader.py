"""Load batches of a dataset in a given order, and read them in advance where this saves time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from nearfar.data.datasets import BatchDataset, ImageDataset
from nearfar.data.pixel_dataset import PixelDataset
from nearfar.data.tensor_dataset import TensorDataset
from nearfar.errors import NearfarError

Job = tuple[int, bool, list[int]]  # a batch to read: epoch, whether to use the training transform, row numbers
T = TypeVar("T")
READ_AHEAD = 2  # number of batches that are read in advance for a GPU


class Batch(NamedTuple):
    """A batch of B samples: the inputs `x` [B, ...], their `labels` and their row numbers `indices` [B].

    The labels have the shape [B], or are multi-hot [B, L] if samples have several labels.
    """

    x: Tensor
    labels: Tensor
    indices: Tensor


class BatchLoader:
    """Loader that yields one batch for each list of row numbers.

    The batches do not depend on the number of workers.

    >>> import numpy as np
    >>> from nearfar.data import Manifest, create_dataset
    >>> vectors = Manifest(labels=[0, 1], classes=("a", "b"), split=["train"] * 2, features=np.eye(2))
    >>> [batch.labels.tolist() for batch in BatchLoader(create_dataset(vectors)).load([[1, 0], [0]])]
    [[1, 0], [0]]

    Only image files are read by workers. Vectors and arrays are read in the calling process, which is faster than
    passing them between processes. Workers run until `close` is called or the loader is deleted.

    For a GPU, a thread reads vectors, arrays and texts in advance, while the GPU computes. Batches are copied from
    pinned memory, and the host does not wait for the copy. Images are copied as uint8 and normalized on the GPU. Images
    from arrays are also augmented there. The tensors of a Python dataset are not read in advance, because its code may
    not be thread-safe. If the network runs on the CPU, no thread reads in advance, because it would compete with
    training for the CPU.

    To read in advance, the loader takes batches from the batch sampler before training needs them: up to `2 * workers`
    batches if workers read them, and two if the thread does. During an epoch, the sampler is therefore ahead of
    training. Save its state only at the start of an epoch.

    Args:
        dataset: Dataset of the samples.
        workers: Number of worker processes for image files. With 0, images are read in the calling process.
        device: Device of the inputs `x` of a batch, by default the CPU. Labels and indices are always on the CPU.
    """

    def __init__(self, dataset: BatchDataset, *, workers: int = 0, device: torch.device | None = None) -> None:
        if workers < 0:
            raise ValueError(f"workers must be 0 or more, got {workers}")
        self.dataset, self.workers, self.device = dataset, workers, device or torch.device("cpu")
        self._is_for_gpu = self.device.type == "cuda"
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
                pin_memory=self._is_for_gpu,
                # without this generator, the DataLoader would draw its seed from torch's global generator and change it
                generator=torch.Generator().manual_seed(0),
            )

    def load(
        self, batches: Iterable[Sequence[int]], *, epoch: int = 0, train: bool = True, read_ahead: bool = True
    ) -> Iterator[Batch]:
        """Yield one batch for each list of row numbers, in order. A new call invalidates earlier iterators.

        Args:
            batches: Lists of row numbers.
            epoch: Epoch that seeds the augmentation.
            train: If True, use the training transform, otherwise the evaluation transform.
            read_ahead: If True, read batches in advance. Use False for samplers that depend on the training state. Each
                batch is then read when it is needed. Image files are read by `workers` threads instead of processes.
        """
        jobs = ((epoch, train, _ints(rows)) for rows in batches)
        for x, rows in self._read(jobs, read_ahead):
            x = x.to(self.device, non_blocking=True)
            if isinstance(self.dataset, PixelDataset):
                x = self.dataset.to_input(x, rows, epoch=epoch, train=train)
            elif isinstance(self.dataset, ImageDataset):
                x = self.dataset.to_input(x, train=train)
            indices = torch.tensor(rows)
            yield Batch(x, self.dataset.labels[indices], indices)

    def _read(self, jobs: Iterator[Job], read_ahead: bool) -> Iterator[tuple[Tensor, list[int]]]:
        """Yield the samples of each job and their rows. The caller passes images to the dataset's `to_input`.

        For a GPU, the samples are in pinned memory.
        """
        if self._loader is not None and read_ahead:
            self._jobs.source = jobs
            for x, loaded, skipped, failure in self._loader:
                if failure:
                    raise NearfarError(failure)
                self.skipped.update(skipped)
                yield x, loaded
        elif self._is_for_gpu and read_ahead and not isinstance(self.dataset, ImageDataset | TensorDataset):
            yield from _run_ahead(partial(self._read_job, job) for job in jobs)
        else:
            for job in jobs:
                yield self._read_job(job)

    def _read_job(self, job: Job) -> tuple[Tensor, list[int]]:
        epoch, train, rows = job
        if isinstance(self.dataset, ImageDataset):
            x, rows, skipped = self.dataset.read(rows, epoch=epoch, train=train, threads=max(1, self.workers))
            self.skipped.update(skipped)
        elif isinstance(self.dataset, PixelDataset):
            x = self.dataset.read_pixels(rows)
        else:
            x = self.dataset.fetch(rows, epoch=epoch, train=train)
        return x.pin_memory() if self._is_for_gpu else x, rows

    def load_all(self, rows: Sequence[int] | Tensor | None = None, *, batch_size: int = 256) -> Iterator[Batch]:
        """Yield batches that cover `rows` (by default all rows) once and in order, with the evaluation transform."""
        selected = _ints(range(len(self.dataset)) if rows is None else rows)
        return self.load((selected[i : i + batch_size] for i in range(0, len(selected), batch_size)), train=False)

    def close(self) -> None:
        """Stop the workers."""
        self._loader = None
        self._jobs.source = iter(())


class _Jobs(Sampler[Job]):
    """Sampler that passes the jobs (batches to read) of the latest call to `load` to the DataLoader."""

    def __init__(self) -> None:
        self.source: Iterator[Job] = iter(())

    def __iter__(self) -> Iterator[Job]:
        return self.source


# the batch, its rows, a message for each skipped row, and the error that prevented reading the batch ("" if none)
Read = tuple[Tensor | None, list[int], dict[int, str], str]


class _BatchReader(Dataset[Read]):
    """Dataset whose items are whole batches. The index of an item is a job, so workers need no state of their own."""

    def __init__(self, images: ImageDataset) -> None:
        self.images = images

    def __getitem__(self, job: Job) -> Read:
        epoch, train, rows = job
        try:
            return *self.images.read(rows, epoch=epoch, train=train), ""
        except NearfarError as error:
            # return the message instead of raising, because torch would add the traceback of the worker to the error
            return None, [], {}, str(error)


def _run_ahead(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Call functions in order on one thread, and yield their results. The thread runs up to READ_AHEAD calls ahead."""
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="nearfar-read-ahead") as pool:
        for call in calls:
            pending.append(pool.submit(call))
            if len(pending) > READ_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _ints(rows: Iterable[int] | Tensor) -> list[int]:
    return [int(row) for row in (rows.tolist() if isinstance(rows, Tensor) else rows)]
