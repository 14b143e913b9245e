"""The stream sampler: every sample once, near its place in the order, and a permutation with a large buffer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from nearfar.samplers import create


def order(seed: int, **options: int) -> list[int]:
    return [row for batch in create("stream", labels=[0] * 200, seed=seed, **options) for row in batch]


@pytest.mark.parametrize("buffer", [1, 7, 1000])
def test_every_sample_once(buffer: int) -> None:
    assert sorted(order(0, size=10, buffer=buffer)) == list(range(200))


def test_a_sample_is_never_read_before_the_buffer_reaches_it() -> None:
    rows = np.array(order(3, size=10, buffer=16))
    start = next(s for s in range(200) if all((row - s) % 200 < position + 16 for position, row in enumerate(rows)))
    assert ((rows - start) % 200 < np.arange(200) + 16).all()


def test_a_buffer_of_one_keeps_the_order() -> None:
    rows = order(1, size=10, buffer=1)
    assert all((b - a) % 200 == 1 for a, b in pairwise(rows))


def test_epochs_and_seeds_differ() -> None:
    sampler = create("stream", labels=[0] * 50, size=5, buffer=8, seed=0)
    first, second = (list(sampler) for _ in range(2))
    assert first != second
    with pytest.raises(ValueError, match="buffer must be at least 1, got buffer=0"):
        create("stream", labels=[0, 1], buffer=0)
