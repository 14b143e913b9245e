"""Work that waits at the same time is done together: queries share a pass of the network, and a pass of the index."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from nearfar.search import Index
from nearfar.search.exact import Neighbors, Vectors
from nearfar.training.evaluate import to_device

MOST = 32
Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """One thread does `work` on lists of items. While it works others gather, and it takes all of them, up to `most`.

    Nobody waits for company: a lone item goes at once.
    """

    def __init__(self, work: Callable[[list[Item]], Sequence[Result]], *, most: int = MOST) -> None:
        self.work, self.most = work, most
        self._waiting: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[Result]:
        """The result of one item, later."""
        result: Future[Result] = Future()
        self._waiting.put((item, result))
        return result

    def close(self) -> None:
        """End the thread, after what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            taken = [first]
            ended = False
            while len(taken) < self.most and not self._waiting.empty():
                more = self._waiting.get()
                if more is None:
                    ended = True
                    break
                taken.append(more)
            self._do([each for each in taken if each[1].set_running_or_notify_cancel()])
            if ended:
                return

    def _do(self, taken: list[tuple[Item, Future[Result]]]) -> None:
        if not taken:
            return
        try:
            done = self.work([item for item, _ in taken])
        except Exception as error:
            for _, result in taken:
                result.set_exception(error)
            return
        for each, (_, result) in zip(done, taken, strict=True):
            result.set_result(each)


def embedding_of(network: nn.Module) -> Callable[[list[Tensor]], list[Tensor]]:
    """Embeddings [d] of samples [...], by one pass of the network."""
    network.eval()
    device = next(network.parameters()).device

    def embed(samples: list[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            return list(network(to_device(torch.stack(samples), device)).float().cpu())

    return embed


def nearest_in(index: Index) -> Callable[[list[tuple[Vectors, int]]], list[Neighbors]]:
    """(distances [k], ids [k]) of vectors [d] with their k, by one pass of the index for the largest k."""

    def search(asked: list[tuple[Vectors, int]]) -> list[Neighbors]:
        distances, ids = index.search(np.stack([vector for vector, _ in asked]), max(k for _, k in asked))
        return [(distances[i, :k], ids[i, :k]) for i, (_, k) in enumerate(asked)]

    return search
