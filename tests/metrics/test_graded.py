"""Graded metrics and relations, compared with loops over the definitions and with scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from nearfar.metrics import evaluate

HIERARCHY = {"lion": ("cat", "animal"), "lynx": ("cat", "animal"), "wolf": ("dog", "animal"), "oak": ("tree", "plant")}
NAMES = list(HIERARCHY)


def shared_levels(one: str, other: str) -> int:
    a, b = ((name, *HIERARCHY[name]) for name in (one, other))
    return sum(x == y for x, y in zip(a, b, strict=True))


def slow_h_ap(grades: list[float]) -> float:
    relevance = [g and g / grades.count(g) for g in grades]
    total = 0.0
    for i in range(len(grades)):
        if grades[i]:
            total += sum(min(relevance[i], relevance[j]) for j in range(i + 1)) / (i + 1)
    return total / sum(relevance)


@pytest.fixture
def data() -> tuple[torch.Tensor, list[str]]:
    generator = torch.Generator().manual_seed(0)
    labels = [NAMES[i % 4] for i in range(30)]
    return torch.randn(30, 4, generator=generator, dtype=torch.float64), labels


def test_hierarchy_against_loops_and_scikit_learn(data: tuple[torch.Tensor, list[str]]) -> None:
    x, labels = data
    scores = evaluate(x, labels, hierarchy=HIERARCHY, metrics=["h-ap", "graded-ndcg@5", "recall@1"], memory_mb=1)
    cosine = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(x).T
    h_ap, ndcg = [], []
    for i in range(30):
        others = [j for j in range(30) if j != i]
        grades = np.array([shared_levels(labels[i], labels[j]) / 3 for j in others])
        similarity = cosine[i][others].numpy()
        h_ap.append(slow_h_ap(grades[np.argsort(-similarity, kind="stable")].tolist()))
        ndcg.append(ndcg_score([grades], [similarity], k=5))
    np.testing.assert_allclose(scores.columns["h-ap"], h_ap, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores.columns["graded-ndcg@5"], ndcg, rtol=0, atol=1e-12)
    assert 0 < scores["h-ap"] < 1


def test_one_level_is_map_and_ndcg(data: tuple[torch.Tensor, list[str]]) -> None:
    x, labels = data
    scores = evaluate(x, labels, metrics=["h-ap", "map", "graded-ndcg@7", "ndcg@7"])
    np.testing.assert_allclose(scores.columns["h-ap"], scores.columns["map"], atol=1e-12)
    np.testing.assert_allclose(scores.columns["graded-ndcg@7"], scores.columns["ndcg@7"], atol=1e-12)


def test_multi_hot_grades_are_shares_of_the_labels_of_the_query() -> None:
    labels = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1]])
    x = torch.tensor([[1.0, 0.0], [1.0, 0.2], [1.0, 0.1], [0.0, 1.0]])
    scores = evaluate(x, labels, metrics=["graded-ndcg@3"])
    first = ndcg_score([[0.5, 0.5, 0.0]], [[0.9, 0.95, 0.0]], k=3)
    assert scores.columns["graded-ndcg@3"][0] == pytest.approx(first)


def test_relation_of_classes_is_the_labels(data: tuple[torch.Tensor, list[str]]) -> None:
    x, labels = data
    names = np.array(labels)
    metrics = ["recall@1", "map@r", "mrr", "h-ap", "graded-ndcg@4"]
    expected = evaluate(x, labels, metrics=metrics)
    for relation in (names[:, None] == names, torch.from_numpy((names[:, None] == names).astype(np.float32))):
        assert evaluate(x, relation=relation, metrics=metrics) == expected
    split = evaluate(x[10:], labels[10:], queries=(x[:10], labels[:10]), metrics=metrics)
    assert evaluate(x[10:], relation=names[:10, None] == names[10:], queries=(x[:10], None), metrics=metrics) == split


def test_a_list_of_pairs_is_its_matrix() -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    pairs = ([0, 0, 3], [1, 2, 4], [1, -1, 1])
    matrix = np.full((5, 5), np.nan)
    for i, j, sign in zip(*pairs, strict=True):
        matrix[i, j] = matrix[j, i] = max(0, sign)
    assert evaluate(x, relation=pairs, metrics=["mrr"]) == evaluate(x, relation=matrix, metrics=["mrr"])
    other = np.full((2, 5), np.nan)
    other[0, 1], other[0, 2], other[1, 4] = 1, 0, 1
    found = evaluate(x, relation=([0, 0, 1], [1, 2, 4], [1, -1, 1]), queries=(x[:2], None), metrics=["mrr"])
    assert found == evaluate(x, relation=other, queries=(x[:2], None), metrics=["mrr"])


def test_unknown_pairs_leave_the_ranking() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]])
    relation = np.array([[np.nan, 0, 1, 0], [0, 1, 0, 0], [1, 0, 1, 0.4], [0, 0, 0.4, 1]])
    scores = evaluate(x, relation=relation, metrics=["mrr", "graded-ndcg@3"])
    assert scores.queries == 2  # the others have only themselves, or a grade below 0.5
    assert scores.columns["mrr"].tolist() == [0.5, 1 / 3]
    known = relation.copy()
    known[0, 1] = np.nan
    assert evaluate(x, relation=known, metrics=["mrr"]).columns["mrr"].tolist() == [1.0, 1 / 3]
    ignored = evaluate(x, relation=relation, metrics=["mrr"], ignore=[[1], [], [], []])
    assert ignored.columns["mrr"].tolist() == [1.0, 1 / 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relation": np.zeros((2, 3))}, r"relation must have shape \[3, 3\]"),
        ({"relation": np.full((3, 3), 2.0)}, r"between 0 and 1, or NaN, got 2.0 at \[0, 0\]"),
        ({"relation": np.zeros((3, 3))}, "none of the 3 queries has a positive"),
        ({"relation": ([0], [9], [1])}, r"second must be in 0..2, got 9"),
        ({"relation": np.eye(3), "labels": [0, 0, 1]}, "relation replaces labels"),
        ({"relation": np.ones((3, 3)), "metrics": "nmi"}, "nmi needs labels"),
        ({}, "labels is missing"),
        ({"labels": [0, 0, 1], "hierarchy": {0: ["a"]}, "metrics": "h-ap"}, "no entry for the label 1"),
        ({"labels": [0, 0, 1], "hierarchy": {0: ["a"], 1: []}, "metrics": "h-ap"}, "same number of ancestors"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(torch.eye(3), **arguments)  # type: ignore[arg-type]
