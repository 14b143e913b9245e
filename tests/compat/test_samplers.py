"""MPerClassSampler: m samples a class in every batch, each class before any again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearfar.compat.samplers import MPerClassSampler

LABELS = torch.arange(40) // 4 + 7  # ten classes of four


def test_batches_hold_m_a_class() -> None:
    sampler = MPerClassSampler(LABELS, m=2, batch_size=8, length_before_new_iter=203)
    rows = torch.tensor(list(sampler))
    assert len(rows) == len(sampler) == 200
    batches = rows.view(-1, 4, 2)  # classes of a batch, samples of a class
    kinds = LABELS[batches]
    assert (kinds[:, :, 0] == kinds[:, :, 1]).all()
    assert (batches[:, :, 0] != batches[:, :, 1]).all()
    assert all(len(set(each.tolist())) == 4 for each in kinds[:, :, 0])
    # three batches fill an epoch of ten classes
    assert all(len(set(kinds[i : i + 3, :, 0].flatten().tolist())) == 10 for i in range(0, 24, 3))


def test_without_a_batch_size_all_classes_come() -> None:
    sampler = MPerClassSampler(LABELS.numpy(), m=5, length_before_new_iter=120)
    rows = np.array(list(sampler)).reshape(2, 10, 5)
    assert len(sampler) == 100
    kinds = LABELS.numpy()[rows]
    assert (kinds == kinds[:, :, :1]).all()
    assert all(sorted(each) == list(range(7, 17)) for each in kinds[:, :, 0].tolist())


def test_numpys_seed_decides_and_passes_differ() -> None:
    sampler = MPerClassSampler(LABELS, m=2, batch_size=4, length_before_new_iter=40)
    np.random.seed(0)
    first, second = list(sampler), list(sampler)
    np.random.seed(0)
    assert list(sampler) == first != second


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 7}, "batch_size must be a multiple of m=2, got 7"),
        ({"batch_size": 30}, "batch_size must be at most m x classes = 2 x 10 = 20, got 30"),
        ({"batch_size": 8, "length_before_new_iter": 4}, "length_before_new_iter must be at least batch_size=8, got 4"),
    ],
)
def test_errors(options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MPerClassSampler(LABELS, m=2, **options)
