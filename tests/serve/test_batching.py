from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from nearfar.search import Index
from nearfar.serve.batching import Batcher, batch_embed, batch_search


class Slow:
    """Double numbers. Each call waits for the gate and records the size of its batch."""

    def __init__(self, *, open_: bool = False) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        if open_:
            self.gate.set()

    def __call__(self, numbers: list[int]) -> list[int]:
        self.sizes.append(len(numbers))
        self.entered.set()
        self.gate.wait(10)
        if min(numbers) < 0:
            raise ValueError("below zero")
        return [2 * each for each in numbers]


def test_queued_items_share_a_batch() -> None:
    work = Slow()
    batcher = Batcher(work, max_batch=8)
    first = batcher.submit(0)
    assert work.entered.wait(10)
    rest = [batcher.submit(i) for i in range(1, 12)]
    rest[4].cancel()
    work.gate.set()
    assert first.result(10) == 0
    assert [each.result(10) for each in rest if not each.cancelled()] == [2 * i for i in range(1, 12) if i != 5]
    assert work.sizes == [1, 7, 3]
    batcher.close()


def test_error_reaches_its_caller_and_later_items_continue() -> None:
    batcher = Batcher(Slow(open_=True))
    with pytest.raises(ValueError, match="below zero"):
        batcher.submit(-1).result(10)
    assert batcher.submit(4).result(10) == 8
    batcher.close()


def test_many_threads() -> None:
    batcher = Batcher(Slow(open_=True))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: batcher.submit(i).result(10), range(400)))
    assert found == [2 * i for i in range(400)]
    batcher.close()


def test_network_and_index_return_results_in_order() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    rows = torch.randn(5, 4)
    together = torch.stack(batch_embed(network)(list(rows)))
    torch.testing.assert_close(together, network[0](rows).detach())

    vectors = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    index = Index.from_vectors(vectors)
    asked = [(vectors[7], 3), (vectors[9], 8), (vectors[1], 1)]
    for (vector, k), (distances, ids) in zip(asked, batch_search(index)(asked), strict=True):
        alone = index.search(vector[None], k)
        assert ids.tolist() == alone[1][0].tolist()
        assert distances.tolist() == alone[0][0].tolist()
