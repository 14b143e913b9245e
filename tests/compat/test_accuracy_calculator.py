"""AccuracyCalculator gives pytorch-metric-learning's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nearfar.compat.utils.accuracy_calculator import CLUSTERING, METRICS, AccuracyCalculator

pytest.importorskip(
    "pytorch_metric_learning", reason="pytorch-metric-learning is not installed: pip install -e '.[peers]'"
)
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as PeerCalculator

RANKED = tuple(name for name in METRICS if name not in CLUSTERING)


def data(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    """Raw rows of several lengths; one label has a single row."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(9, (rows,), generator=generator)
    labels[0] = 9 + seed
    centers = torch.randn(12, 6, generator=torch.Generator().manual_seed(7))
    rows_of = centers[labels] + 0.8 * torch.randn(rows, 6, generator=generator)
    return rows_of * (0.5 + torch.rand(rows, 1, generator=generator)), labels


@pytest.mark.parametrize("options", [{}, {"avg_of_avgs": True}, {"return_per_class": True}])
def test_retrieval_is_the_peers(options: dict[str, Any]) -> None:
    query, labels = data(0, 80)
    reference, reference_labels = data(1, 130)
    ours = AccuracyCalculator(include=RANKED, **options)
    theirs = PeerCalculator(include=RANKED, device=torch.device("cpu"), **options)
    calls: list[tuple[Any, ...]] = [
        (query, labels),
        (query, labels, reference, reference_labels),
        (query, labels, torch.cat([query, reference]), torch.cat([labels, reference_labels]), True),
        (query.numpy(), labels.numpy()),
    ]
    for call in calls:
        found, expected = ours.get_accuracy(*call), theirs.get_accuracy(*call)
        assert found.keys() == expected.keys()
        for name in RANKED:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_max_bin_count_is_the_same_where_it_cuts_nothing_off() -> None:
    query, labels = data(0, 80)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    ours = AccuracyCalculator(include=names, k="max_bin_count").get_accuracy(query, labels)
    theirs = PeerCalculator(include=names, k="max_bin_count", device=torch.device("cpu")).get_accuracy(query, labels)
    assert ours == pytest.approx(theirs)


def test_clusters_are_near_the_peers() -> None:
    query, labels = data(0, 200)
    ours = AccuracyCalculator(include=CLUSTERING).get_accuracy(query, labels)
    theirs = PeerCalculator(include=CLUSTERING, device=torch.device("cpu")).get_accuracy(query, labels)
    assert ours == pytest.approx(theirs, abs=0.1)


def test_include_and_exclude() -> None:
    query, labels = data(0, 40)
    calculator = AccuracyCalculator(exclude=("AMI",))
    assert set(calculator.get_accuracy(query, labels, exclude=("NMI",))) == set(RANKED)
    assert list(calculator.get_accuracy(query, labels, include=("mean_reciprocal_rank",))) == ["mean_reciprocal_rank"]


def test_large_labels_stay_apart() -> None:
    labels = torch.tensor([2**24, 2**24 + 1, 2**24, 2**24 + 1])
    rows = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    assert AccuracyCalculator(include=("precision_at_1",)).get_accuracy(rows, labels) == {"precision_at_1": 0.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k must be an integer of at least 1, None or 'max_bin_count', got 0"),
        ({"include": ("recall",)}, "include and exclude may only contain .* got 'recall'"),
        ({"avg_of_avgs": True, "return_per_class": True}, "choose one"),
    ],
)
def test_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AccuracyCalculator(**options)


def test_references_must_begin_with_the_queries() -> None:
    rows, labels = torch.arange(6.0)[:, None], torch.tensor([0, 1, 2, 0, 1, 2])
    calculator = AccuracyCalculator(include=("precision_at_1",))
    with pytest.raises(ValueError, match="do not begin with the queries"):
        calculator.get_accuracy(rows[:3], labels[:3], rows.flip(0), labels.flip(0), ref_includes_query=True)
