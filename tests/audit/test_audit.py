"""The audit finds injected wrong labels and explains them, whatever the order, block size or label numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nearfar.audit import audit, auroc, precision_at
from nearfar.audit.baselines import knn_vote, loss_ranking
from nearfar.audit.ranking import swap_labels
from nearfar.data import add_label_noise, load_sketches


def clusters(samples: int = 300, classes: int = 6, wrong: int = 30) -> tuple[Tensor, Tensor, Tensor]:
    """Return noisy clusters, their true labels, and given labels of which the first `wrong` are wrong."""
    truth = torch.arange(samples) % classes
    x = torch.eye(classes, 16)[truth] + 0.25 * torch.randn(samples, 16)
    given = truth.clone()
    given[:wrong] = (truth[:wrong] + 1 + torch.arange(wrong) % (classes - 1)) % classes
    return x, truth, given


def test_finds_and_corrects() -> None:
    x, truth, given = clusters()
    found = audit(x, given)
    assert set(found.order()[:30].tolist()) == set(range(30))
    assert (found.suggested[:30] == truth[:30].numpy()).mean() > 0.9
    assert (found.suggested[30:] == truth[30:].numpy()).mean() > 0.98
    assert found.weight[:30].mean() < 0.2 < 0.7 < found.weight[30:].mean()
    assert (found.rival != found.labels).all()


def test_neighbors_and_votes_by_a_slow_loop() -> None:
    x, _, given = clusters(60, 5, 6)
    found = audit(x.double(), given, k=7)
    rows = torch.nn.functional.normalize(x.double() - x.double().mean(0))
    for i in range(60):
        order = sorted((j for j in range(60) if j != i), key=lambda j: -float(rows[i] @ rows[j]))[:7]
        assert found.neighbors[i].tolist() == order
        assert found.votes[i, 0] == sum(int(given[j] == given[i]) for j in order)
        assert found.votes[i, 1] == sum(int(given[j] == found.rival[i]) for j in order)
        for column, label in enumerate((given[i], found.rival[i])):
            mates = [j for j in range(60) if given[j] == label and j != i]
            center = torch.nn.functional.normalize(rows[mates].sum(0), dim=0)
            assert found.similarity[i, column] == pytest.approx(float(rows[i] @ center), abs=1e-9)


def test_blocks_order_and_numbers_do_not_matter() -> None:
    x, _, given = clusters()
    whole = audit(x.double(), given)
    parts = audit(x.double(), given, memory_mb=0)
    np.testing.assert_allclose(parts.score, whole.score, atol=1e-6)
    order = torch.randperm(300)
    turned = audit(x.double()[order], given[order] * 1000 + 7)
    np.testing.assert_allclose(turned.score, whole.score[order.numpy()], atol=0.05)
    assert (turned.suggested == whole.suggested[order.numpy()] * 1000 + 7).all()


def test_beats_the_baselines_on_drawings() -> None:
    data = load_sketches().subset(np.arange(3000)).compact()
    noisy, record = add_label_noise(data, 0.2, seed=0)
    assert data.pixels is not None
    x = torch.nn.functional.avg_pool2d(torch.tensor(data.pixels[:, None]).float(), 2).flatten(1)
    labels = torch.tensor(noisy.labels)
    ours = audit(x, labels)
    for other in (knn_vote(x, labels), loss_ranking(x, labels)):
        assert auroc(ours.score, record.wrong) > auroc(other, record.wrong) + 0.02
        assert precision_at(ours.score, record.wrong, 100) > precision_at(other, record.wrong, 100)
    assert auroc(ours.score, record.wrong) > 0.85


def test_reason_names_the_classes() -> None:
    x, _, given = clusters()
    found = audit(x, given, classes=[f"kind {c}" for c in range(6)])
    words = found.reason(0)
    assert f"kind {int(given[0])}" in words
    assert f"kind {int(found.rival[0])}" in words
    assert "Of the 20 nearest" in words


def test_small_and_unusual_datasets() -> None:
    lonely = audit(torch.randn(5, 3), [0, 0, 0, 0, 1], k=50)
    assert lonely.neighbors.shape == (5, 4)
    assert np.isfinite(lonely.score).all()
    same = audit(torch.ones(6, 3), [0, 0, 0, 1, 1, 1])
    assert np.isfinite(same.score).all()
    labels, rows = swap_labels(np.array([3, 7, 7]))
    assert sorted(labels.tolist()) != [3, 7, 7]
    assert len(rows) == 1


@pytest.mark.parametrize(
    ("x", "labels", "options", "words"),
    [
        (torch.ones(3, 2), [0, 1], {}, r"class ids of shape \[3\]"),
        (torch.ones(3, 2), [0.0, 1.0, 2.0], {}, "class ids"),
        (torch.ones(3, 2), [1, 1, 1], {}, "at least 2 classes, got 1"),
        (torch.full((3, 2), torch.nan), [0, 1, 1], {}, "NaN or infinite"),
        (torch.ones(3, 2), [0, 1, 1], {"k": 0}, "k must be at least 1"),
        (torch.ones(3, 2), [0, 1, 2], {"classes": ["a", "b"]}, "a name for every label from 0 to 2, got 2 names"),
    ],
)
def test_bad_input(x: Tensor, labels: list[int], options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        audit(x, labels, **options)


def test_auroc_is_the_share_of_pairs() -> None:
    rng = np.random.default_rng(0)
    score, wrong = rng.integers(8, size=60) / 8, rng.random(60) < 0.3
    pairs = [(a > b) + 0.5 * (a == b) for a in score[wrong] for b in score[~wrong]]
    assert auroc(score, wrong) == pytest.approx(np.mean(pairs))
    with pytest.raises(ValueError, match="wrong must contain both True and False"):
        auroc([1.0], [True])
    with pytest.raises(ValueError, match=r"count must be in 1..1, got 2"):
        precision_at([1.0], [True], 2)
