"""Scores: means, tables, per class, per query, comparison; protocols and approximate evaluation."""

import json
from dataclasses import FrozenInstanceError

import faiss
import numpy as np
import pytest
import torch

from nearfar.metrics import evaluate
from nearfar.metrics.protocols import (
    PROTOCOLS,
    class_disjoint_split,
    concatenate,
    evaluate_as,
    evaluate_folds,
    first_half,
    mlrc_folds,
    same_camera,
)


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 30, 600)
    labels[:5] = np.arange(100, 105)
    points = rng.standard_normal((105, 16))[labels] + 1.2 * rng.standard_normal((600, 16))
    return points.astype(np.float32), labels


def test_values_are_means_of_per_query(blobs):
    scores = evaluate(*blobs, metrics=("recall", "map@r", "nmi"))
    table = scores.per_query()
    assert (scores.queries, scores.dropped, scores.gallery) == (595, 5, 600)
    assert table["query"].tolist() == list(range(5, 600))
    assert (table["label"] == blobs[1][5:]).all()
    for name in ("recall@1", "recall@8", "map@r"):
        assert scores[name] == table[name].mean()
    assert "nmi" not in table
    assert (blobs[1][table["nearest"]] == table["label"]).mean() == scores["recall@1"]
    with pytest.raises(KeyError, match="'ndcg@1' was not computed; these scores have recall@1"):
        scores["ndcg@1"]
    with pytest.raises(FrozenInstanceError):
        scores.queries = 3


def test_per_class_averages_back_to_the_mean(blobs):
    scores = evaluate(*blobs)
    classes = scores.per_class()
    assert set(classes) == set(range(30))
    total = sum(each["queries"] * each["map@r"] for each in classes.values())
    assert total / scores.queries == pytest.approx(scores["map@r"])
    words = evaluate(blobs[0], [f"bird {label}" for label in blobs[1]]).per_class()
    assert words["bird 7"] == classes[7]
    hot = evaluate(blobs[0], np.eye(105, dtype=bool)[blobs[1]]).per_class()
    assert hot[7]["map@r"] == pytest.approx(classes[7]["map@r"])


def test_table_and_json(blobs):
    scores = evaluate(*blobs, metrics=("recall@1", "nmi"))
    content = json.loads(scores.to_json())
    assert content["values"] == dict(scores)
    assert content["dropped"] == 5
    lines = scores.table().splitlines()
    assert lines[1].split() == ["recall@1", f"{100 * scores['recall@1']:.2f}"]
    assert "±" in lines[2]
    assert "595 queries (5 more dropped: no positive)" in lines[-1]


def test_compare(blobs):
    points, labels = blobs
    worse = points + 2 * np.random.default_rng(1).standard_normal(points.shape).astype(np.float32)
    good, bad = evaluate(points, labels), evaluate(worse, labels)
    for by in ("query", "class"):
        difference = good.compare(bad, by=by)["map@r"]
        assert difference.mean == pytest.approx(good["map@r"] - bad["map@r"])
        assert difference.low < difference.mean < difference.high
        assert difference.excludes_zero
        assert good.compare(bad, by=by) == good.compare(bad, by=by)
    none = good.compare(good)["map@r"]
    assert (none.mean, none.low, none.high, none.excludes_zero) == (0, 0, 0, False)
    assert str(none) == "+0.00 [+0.00, +0.00]"
    reverse = bad.compare(good)["map@r"]
    assert reverse.mean == pytest.approx(-good.compare(bad)["map@r"].mean)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    from nearfar.metrics.comparison import compare_columns

    covered = 0
    for _ in range(200):
        sample = {"m": rng.standard_normal(80) + 0.3}
        found = compare_columns(sample, np.arange(80), level=0.9, resamples=300, seed=int(rng.integers(1 << 30)))["m"]
        covered += found.low <= 0.3 <= found.high
    assert 165 <= covered <= 195


def test_compare_refuses_other_queries(blobs):
    points, labels = blobs
    with pytest.raises(ValueError, match="same queries"):
        evaluate(points, labels).compare(evaluate(points[:300], labels[:300]))
    with pytest.raises(ValueError, match="in common"):
        evaluate(points, labels, metrics="mrr").compare(evaluate(points, labels, metrics="recall@1"))
    with pytest.raises(ValueError, match="by must be"):
        evaluate(points, labels).compare(evaluate(points, labels), by="image")


def test_an_exact_index_gives_the_exact_values(blobs):
    points, labels = blobs
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(16)
    index.add(unit)
    names = ("recall", "map@r", "ndcg@10", "mrr", "map", "precision@5")
    exact, found = (evaluate(points, labels, metrics=names, index=each) for each in (None, index))
    assert found == pytest.approx(exact, abs=1e-9)
    assert found.approximation["sample"] > 500
    assert max(abs(v) for k, v in found.approximation.items() if k != "sample") < 1e-9
    assert "approximate" in found.table()
    ignore = [[(q + 1) % 600, (q + 7) % 600] for q in range(600)]
    pair = [evaluate(points, labels, metrics=names, index=each, ignore=ignore) for each in (None, index)]
    assert pair[0] == pytest.approx(pair[1], abs=1e-9)


def test_the_error_of_a_coarse_index_is_told(blobs):
    points, labels = blobs
    index = faiss.index_factory(16, "IVF32,Flat")
    index.train(points)
    index.add(points)
    index.nprobe = 1
    exact = evaluate(points, labels, distance="euclidean")
    found = evaluate(points, labels, distance="euclidean", index=index, index_sample=10_000)
    assert abs(found["map@r"] - exact["map@r"]) > 0.01
    for name in exact:
        assert found.approximation[name] == pytest.approx(found[name] - exact[name], abs=1e-12)
    with pytest.raises(ValueError, match=r"index holds 600 vectors .* but embeddings have shape \[599, 16\]"):
        evaluate(points[1:], labels[1:], index=index)


def test_protocols(blobs):
    points, labels = blobs
    assert PROTOCOLS["in-shop"].recall == (1, 10, 20, 30, 40, 50)
    shop = evaluate_as("in-shop", points[200:], labels[200:], queries=(points[:200], labels[:200]))
    assert list(shop)[:2] == ["recall@1", "recall@10"]
    assert (shop.queries, shop.dropped, shop.gallery) == (195, 5, 400)
    assert list(evaluate_as("sop", points, labels, extra=("nmi",)))[-3:] == ["ndcg@10", "ndcg@100", "nmi"]


def test_folds_are_class_disjoint_contiguous_quarters():
    labels = np.repeat(np.arange(98), 3)
    train, test = first_half(np.repeat(np.arange(196), 2))
    assert (train.tolist(), test.tolist()) == (list(range(196)), list(range(196, 392)))
    folds = mlrc_folds(labels)
    assert [len(held) // 3 for _, held in folds] == [25, 25, 24, 24]
    assert np.concatenate([held for _, held in folds]).tolist() == list(range(294))
    for rest, held in folds:
        assert not set(labels[rest]) & set(labels[held])
        assert len(rest) + len(held) == 294
    train, held = class_disjoint_split(labels, fraction=0.25, seed=3)
    assert not set(labels[train]) & set(labels[held])
    assert len(set(labels[held])) == 24
    assert (held == class_disjoint_split(labels, fraction=0.25, seed=3)[1]).all()


def test_separated_and_concatenated(blobs):
    points, labels = blobs
    rng = np.random.default_rng(2)
    models = [torch.from_numpy(points @ rng.standard_normal((16, 4)).astype(np.float32)) for _ in range(4)]
    scores = evaluate_folds(models, labels)
    each = [evaluate(model, labels, metrics="map@r")["map@r"] for model in models]
    assert scores.mean()["map@r"] == pytest.approx(np.mean(each))
    assert scores.concatenated["map@r"] > max(each)
    assert concatenate(models).shape == (600, 16)
    assert scores.concatenated == evaluate(concatenate(models), labels, metrics=("recall@1", "r-precision", "map@r"))


def test_same_camera_is_the_rule_of_re_identification():
    people, cameras = np.array([1, 1, 2, 2, 2]), np.array([0, 1, 0, 0, 1])
    assert [rows.tolist() for rows in same_camera(people, cameras)] == [[0], [1], [2, 3], [2, 3], [4]]
    points = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [1.0, 0.2], [0.1, 1.0]])
    scores = evaluate(points, people, ignore=same_camera(people, cameras), metrics="mrr")
    assert scores.per_query()["positives"].tolist() == [1, 1, 1, 1, 2]


def test_scores_are_a_mapping(blobs):
    scores = evaluate(*blobs, metrics=("recall@1", "map@r"))
    assert dict(scores) == {"recall@1": scores["recall@1"], "map@r": scores["map@r"]} == scores
    assert list(scores) == list(scores.keys()) == ["recall@1", "map@r"]
    assert (len(scores), "map@r" in scores, "mrr" in scores) == (2, True, False)
    assert scores.get("mrr") is None
    assert list(scores.items()) == list(zip(scores.keys(), scores.values(), strict=True))
