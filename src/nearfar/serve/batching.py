"""Batching of concurrent requests: queries share one forward pass of the network and one search of the index."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.models.tokenizer import PADDING
from nearfar.search import Index
from nearfar.search.exact import Neighbors, Vectors
from nearfar.training.evaluate import has_channels_last, to_device

MAX_BATCH = 32
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Process items in batches in one thread.

    Items that arrive while a batch is processed form the next batch. An item never waits for others to arrive.

    Args:
        work: A function that takes a list of items and returns their results in the same order.
        max_batch: The largest number of items in a batch.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]], *, max_batch: int = MAX_BATCH) -> None:
        self.work, self.max_batch = work, max_batch
        self._queue: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """Queue an item and return a future for its result."""
        future: Future[Result] = Future()
        self._queue.put((item, future))
        return future

    def close(self) -> None:
        """Process the queued items, then stop the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            is_closed = False
            while len(batch) < self.max_batch and not self._queue.empty():
                entry = self._queue.get()
                if entry is None:
                    is_closed = True
                    break
                batch.append(entry)
            self._process([entry for entry in batch if entry[1].set_running_or_notify_cancel()])
            if is_closed:
                return

    def _process(self, batch: list[tuple[Item, Future[Result]]]) -> None:
        if not batch:
            return
        try:
            results = self.work([item for item, _ in batch])
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for result, (_, future) in zip(results, batch, strict=True):
            future.set_result(result)


def batch_embed(network: nn.Module) -> Callable[[list[Tensor]], list[Tensor]]:
    """Return a function that computes the embeddings [d] of a list of network inputs in one forward pass."""
    network.eval()
    device = next(network.parameters()).device

    def embed(inputs: list[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            x = to_device(_stack(inputs), device, channels_last=has_channels_last(network))
            return list(network(x).float().cpu())

    return embed


def _stack(inputs: list[Tensor]) -> Tensor:
    """Stack inputs of the network. Tokens of texts are padded to the longest text."""
    if inputs[0].is_floating_point():
        return torch.stack(inputs)
    return nn.utils.rnn.pad_sequence(inputs, batch_first=True, padding_value=PADDING)


def batch_search(index: Index) -> Callable[[list[tuple[Vectors, int]]], list[Neighbors]]:
    """Return a function that searches the index for a list of queries at once.

    It takes pairs (vector [d], k) and returns a pair (distances [k], ids [k]) for each.
    """

    def search(queries: list[tuple[Vectors, int]]) -> list[Neighbors]:
        distances, ids = index.search(np.stack([vector for vector, _ in queries]), max(k for _, k in queries))
        return [(distances[i, :k], ids[i, :k]) for i, (_, k) in enumerate(queries)]

    return search
