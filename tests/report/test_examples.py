import numpy as np
import pytest
import torch

from nearfar.data import Manifest
from nearfar.metrics import evaluate
from nearfar.report import find_confusions, find_neighbors, find_worst_queries, rank_queries, search_examples


def manifest(labels, role=None) -> Manifest:
    names = tuple(f"class {chr(97 + c)}" for c in range(max(labels) + 1))
    paths = tuple(f"{i}.jpg" for i in range(len(labels)))
    return Manifest(labels=labels, classes=names, split=["test"] * len(labels), paths=paths, role=role)


def slow_ranking(x, row, gallery):
    unit = x / x.norm(dim=1, keepdim=True)
    return sorted((g for g in gallery if g != row), key=lambda g: (-float(unit[row] @ unit[g]), g))


def test_neighbors_by_a_slow_loop():
    data, x = manifest([0, 1, 2] * 7), torch.randn(21, 5).double()
    for found in find_neighbors(data, x, [4, 20, 0], neighbors=6):
        order = slow_ranking(x, found.row, range(21))
        assert found.rows == order[:6]
        assert found.is_match == [data.labels[g] == data.labels[found.row] for g in order[:6]]
        assert found.names == [data.classes[data.labels[g]] for g in order[:6]]
        first = next(place for place, g in enumerate(order, 1) if data.labels[g] == data.labels[found.row])
        assert found.first_match == first
        assert found.similarities == sorted(found.similarities, reverse=True)


def test_ranked_queries_agree_with_evaluate(monkeypatch):
    monkeypatch.setattr("nearfar.report.examples.BLOCK", 7)  # several blocks, the last one shorter
    data, x = manifest([0, 1, 2, 3] * 10 + [4]), torch.randn(41, 6).double()
    seen = evaluate(x, torch.from_numpy(data.labels.copy()), ks=(1,)).per_query()
    ranked = rank_queries(data, x)
    assert ranked.rows.tolist() == seen["query"].tolist()  # class 4 has one sample and is left out
    assert ranked.nearest.tolist() == seen["nearest"].tolist()
    assert ranked.first_match.tolist() == seen["first"].tolist()


def test_ties_are_ordered_by_row():
    data, x = manifest([0, 1, 0, 1]), torch.ones(4, 3)
    ranked = rank_queries(data, x)
    assert ranked.first_match.tolist() == [2, 3, 1, 2]
    assert ranked.nearest.tolist() == [1, 0, 0, 0]
    assert find_neighbors(data, x, [2])[0].rows == [0, 1, 3]
    many = find_neighbors(manifest([0, 1] * 3000), torch.ones(6000, 2), [2])
    assert many[0].rows == [0, 1, 3, 4, 5, 6, 7, 8]


def test_a_sample_of_queries():
    data, x = manifest([0, 1] * 50), torch.randn(100, 4)
    some, whole = rank_queries(data, x, queries=10, seed=1), rank_queries(data, x)
    assert len(some.rows) == 10
    assert some.rows.tolist() != rank_queries(data, x, queries=10, seed=2).rows.tolist()
    assert some.first_match.tolist() == whole.first_match[some.rows].tolist()


def test_queries_are_spread_over_classes_and_repeat_only_if_needed():
    data, x = manifest([c for c in range(9) for _ in range(4)]), torch.randn(36, 4)
    names = [found.name for found in search_examples(data, x, queries=3)]
    assert names == ["class a", "class e", "class i"]
    rows = [found.row for found in search_examples(data, x, queries=20)]
    assert len(set(rows)) == 20
    assert np.bincount(data.labels[rows]).min() == 2
    assert len(search_examples(data, x, queries=99)) == 36
    assert rows != [found.row for found in search_examples(data, x, queries=20, seed=1)]


def test_a_class_of_one_is_a_query_only_if_there_is_no_other():
    data, x = manifest([0, 1, 1, 2]), torch.randn(4, 3)
    assert {found.name for found in search_examples(data, x)} == {"class b"}
    (found,) = search_examples(manifest([0]), torch.randn(1, 3))
    assert (found.rows, found.first_match) == ([], None)
    alone = search_examples(manifest([0, 1]), torch.randn(2, 3))
    assert [found.first_match for found in alone] == [None, None]
    assert not len(rank_queries(manifest([0, 1]), torch.randn(2, 3)).rows)


def test_roles():
    role = ["query", "gallery", "gallery", "query", "gallery", "train"]
    data, x = manifest([0, 0, 1, 1, 1, 0], role), torch.randn(6, 4).double()
    ranked = rank_queries(data, x)
    assert ranked.rows.tolist() == [0, 3]
    assert ranked.nearest.tolist() == [slow_ranking(x, row, [1, 2, 4])[0] for row in (0, 3)]
    for found in search_examples(data, x):
        assert found.rows == slow_ranking(x, found.row, [1, 2, 4])


def test_find_worst_queries():
    data = manifest([0, 0, 0, 1, 1, 2, 2])
    # class 1 lies among class 0, and one sample of class 0 among class 2
    x = torch.tensor([[1.0, 0.0], [1.0, 0.05], [0.0, 1.0], [1.0, 0.02], [0.3, 0.7], [0.01, 1.0], [0.05, 1.0]])
    ranked = rank_queries(data, x)
    worst = find_worst_queries(data, ranked, queries=3)
    ranks = dict(zip(ranked.rows.tolist(), ranked.first_match.tolist(), strict=True))
    assert len({int(data.labels[row]) for row in worst}) == len(worst)
    assert [ranks[row] for row in worst] == sorted((ranks[row] for row in worst), reverse=True)
    assert ranks[worst[0]] == max(ranks.values()) > 1
    perfect = rank_queries(data, torch.eye(3)[torch.from_numpy(data.labels.copy())])
    assert find_worst_queries(data, perfect) == []
    assert find_confusions(data, perfect) == []


def test_find_confusions_by_a_slow_count():
    data, x = manifest([c for c in range(5) for _ in range(6)]), torch.randn(30, 3).double()
    ranked = rank_queries(data, x)
    counts: dict[tuple[int, int], int] = {}
    for row in range(30):
        a, b = sorted((int(data.labels[row]), int(data.labels[slow_ranking(x, row, range(30))[0]])))
        if a != b:
            counts[a, b] = counts.get((a, b), 0) + 1
    found = find_confusions(data, ranked, pairs=99)
    names = {(data.classes[a], data.classes[b]): n for (a, b), n in counts.items()}
    assert {each.names: each.count for each in found} == names
    assert [each.count for each in found] == sorted(names.values(), reverse=True)
    for each in found:
        assert each.queries == 12
        query, taken = each.rows
        assert slow_ranking(x, query, range(30))[0] == taken
        assert {data.classes[data.labels[query]], data.classes[data.labels[taken]]} == set(each.names)
    assert find_confusions(data, ranked, pairs=2) == found[:2]


def test_a_wrong_number_of_embeddings_is_an_error():
    with pytest.raises(ValueError, match="embeddings has 3 rows but data has 4 samples"):
        search_examples(manifest([0, 0, 1, 1]), torch.randn(3, 2))
