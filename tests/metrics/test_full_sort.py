"""evaluate against a full sort on 200 random cases with ties, singletons and every kind of label."""

import numpy as np
import pytest
import torch

from metrics import oracle
from nearfar.metrics import evaluate

NAMES = (
    "recall@1",
    "recall@5",
    "recall@200",
    "precision@1",
    "precision@7",
    "precision@200",
    "map@r",
    "map@5",
    "map",
    "r-precision",
    "ndcg@1",
    "ndcg@10",
    "ndcg@200",
    "mrr",
)


def random_labels(rng, rows, classes, kind):
    codes = rng.integers(0, classes, rows)
    if kind == "multi-hot":
        return rng.random((rows, max(classes, 2))) < 1.5 / classes  # a single column is refused
    if kind == "text":
        return np.array([f"class {c:x}" for c in codes])
    return codes * {"int": 1, "large": 2**53 + 1}[kind]


@pytest.mark.parametrize("case", range(200))
def test_equal_to_a_full_sort(case):
    rng = np.random.default_rng(case)
    rows, found, dim = int(rng.integers(2, 90)), int(rng.integers(1, 30)), int(rng.integers(1, 6))
    classes = int(rng.choice([1, 2, 5, 40]))
    kind = ("int", "text", "multi-hot", "large")[case % 4]
    distance = ("cosine", "euclidean")[case // 4 % 2]
    same_set = bool(case // 8 % 2)
    # Few levels: dot products are exact in float32 and ties are everywhere.
    gallery = rng.integers(-2, 3, (rows, dim)).astype(np.float32)
    labels = random_labels(rng, rows, classes, kind)
    queries, query_labels = gallery, labels
    if not same_set:
        queries = rng.integers(-2, 3, (found, dim)).astype(np.float32)
        query_labels = random_labels(rng, found, classes, kind)
    ignore = None
    if case % 3 == 0:
        ignore = [rng.choice(rows, int(rng.integers(0, min(rows, 6))), replace=False) for _ in queries]
    names = NAMES if case % 2 else tuple(rng.choice(NAMES, 3, replace=False))

    scores = oracle.similarities(gallery, queries, distance)
    lists = list(oracle.rankings(scores, labels, query_labels, same_set, ignore))
    counted = [q for q, (_, relevance) in enumerate(lists) if any(relevance)]
    options = {
        "queries": None if same_set else (queries, query_labels),
        "metrics": names,
        "ignore": ignore,
        "distance": distance,
        "memory_mb": 1,
    }
    if not counted:
        with pytest.raises(ValueError, match="has a positive"):
            evaluate(gallery, labels, **options)
        return
    result = evaluate(torch.from_numpy(gallery) if case % 5 else gallery.astype(np.float64), labels, **options)
    table = result.per_query()
    assert result.queries == len(counted)
    assert result.dropped == len(queries) - len(counted)
    assert table["query"].tolist() == counted
    assert table["positives"].tolist() == [sum(lists[q][1]) for q in counted]
    assert table["first"].tolist() == [lists[q][1].index(True) + 1 for q in counted]
    assert table["nearest"].tolist() == [lists[q][0][0] for q in counted]
    for name in names:
        expected = [oracle.metric(name, lists[q][1]) for q in counted]
        np.testing.assert_allclose(table[name], expected, rtol=0, atol=1e-12, err_msg=name)
        assert result[name] == pytest.approx(np.mean(expected), abs=1e-12)
