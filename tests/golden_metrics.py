"""metrics.json: every metric of every query, the clustering scores, and the 25 cells of MPA's Table 3."""

from typing import Any

import numpy as np
import pytest
import torch

from golden_cases import load
from nearfar.metrics import evaluate, normalized_mutual_info, pairwise_f1
from nearfar.metrics.clustering import count_overlaps

TABLE_3 = {"Recall@10": "recall@10", "Precision@10": "precision@10", "MAP@10": "map@10", "nDCG@10": "ndcg@10"}


def our_name(name: str) -> str:
    return "recall" + name[1:] if name.startswith("R@") else name.lower()


def check_queries(block: dict[str, Any], embeddings: Any, labels: Any, queries: Any = None) -> None:
    """Every metric of every query and every mean, in double and single precision."""
    keys = [key for key in block["per_query"][0] if key not in ("query", "ranking", "relevance", "R")]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        rows = torch.tensor(embeddings, dtype=dtype)
        pair = None if queries is None else (torch.tensor(queries[0], dtype=dtype), queries[1])
        scores = evaluate(rows, labels, queries=pair, metrics=[our_name(key) for key in keys])
        table = scores.per_query()
        counted = [each for each in block["per_query"] if each["R"] > 0]
        assert table["query"].tolist() == [each["query"] for each in counted]
        assert table["positives"].tolist() == [each["R"] for each in counted]
        assert table["nearest"].tolist() == [each["ranking"][0] for each in counted]
        for key in keys:
            np.testing.assert_allclose(table[our_name(key)], [each[key] for each in counted], atol=tolerance)
        for key, mean in block["mean"].items():
            assert scores[our_name(key)] == pytest.approx(mean, abs=tolerance), key


def check_clustering(block: dict[str, Any]) -> None:
    labels, clusters = np.array(block["labels"]), np.array(block["clusters"])
    assert normalized_mutual_info(labels, clusters) == pytest.approx(block["NMI_arithmetic"], abs=1e-12)
    assert pairwise_f1(labels, clusters) == pytest.approx(block["F1"], abs=1e-12)
    table = count_overlaps(labels, clusters)
    together, same_class, same_cluster = ((n * (n - 1) // 2).sum() for n in (table.cells, table.a, table.b))
    assert (together, same_cluster - together, same_class - together) == (block["tp"], block["fp"], block["fn"])


def check_table_3(case: dict[str, Any]) -> None:
    """A query on the x axis and a gallery that turns away from it: its order is the relevance list.

    MAP@R has R = 4 there, so the positives that the list does not show stand behind it.
    """
    shown = list(case["relevance"])
    relevance = shown + [1] * (4 - sum(shown))
    angle = np.linspace(0.1, 1.5, len(relevance))
    gallery = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    names = [TABLE_3.get(column, "map@r") for column in case["columns"]]
    scores = evaluate(gallery, relevance, queries=([[1.0, 0.0]], [1]), metrics=names)
    computed = [100 * scores[name] for name in names]
    np.testing.assert_allclose(computed, case["computed"], rtol=1e-12)
    np.testing.assert_allclose(computed, case["paper"], atol=0.051)


def test_metrics() -> None:
    data = load("metrics")
    assert set(data) <= {"note", "same_set", "query_gallery", "clustering", "mpa_table3"}
    one, two = data["same_set"], data["query_gallery"]
    check_queries(one, one["embeddings"], one["labels"])
    check_queries(two, two["gallery"], two["gallery_labels"], (two["query"], two["query_labels"]))
    check_clustering(data["clustering"])
    for case in data["mpa_table3"]:
        check_table_3(case)
