"""What evaluate promises: identities, exact ids, dtypes, block sizes, memory, single metrics."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from nearfar.metrics import evaluate
from nearfar.metrics.names import CLUSTERING, expand_names

EVERY = ("recall", "precision", "map@k", "map", "map@r", "r-precision", "ndcg", "mrr", *CLUSTERING)


def blobs(rows=300, classes=20, dim=8, noise=0.8, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    points = rng.standard_normal((classes, dim))[labels] + noise * rng.standard_normal((rows, dim))
    return points.astype(np.float32), labels


def test_identities():
    points, labels = blobs()
    table = evaluate(points, labels, ks=(1, 2, 4, 8, 500), metrics=EVERY[:8]).per_query()
    assert (table["map@r"] <= table["r-precision"] + 1e-12).all()
    assert (table["ndcg@1"] == table["recall@1"]).all()
    assert (table["precision@1"] == table["recall@1"]).all()
    assert (table["map@1"] == table["recall@1"]).all()
    for low, high in ((1, 2), (2, 4), (4, 8), (8, 500)):
        assert (table[f"recall@{low}"] <= table[f"recall@{high}"]).all()
    assert (table["recall@500"] == 1).all()
    np.testing.assert_allclose(table["precision@500"], table["positives"] / 500)
    np.testing.assert_allclose(table["mrr"], 1 / table["first"])


@pytest.mark.parametrize("classes", [1, 3, 60])
def test_a_perfect_ranking_scores_exactly_one(classes):
    labels = np.arange(120) % classes
    points = np.eye(classes, dtype=np.float32)[labels]
    names = ("recall@1", "precision@1", "map@r", "map", "r-precision", "ndcg@1", "ndcg@10", "ndcg@1000", "mrr")
    assert set(evaluate(points, labels, metrics=names).values()) == {1.0}


@pytest.mark.parametrize("name", expand_names(EVERY, (1, 10)))
def test_a_metric_alone_is_the_same_as_in_company(name):
    points, labels = blobs(rows=90, classes=6)
    together = evaluate(points, labels, ks=(1, 10), metrics=EVERY)
    alone = evaluate(points, labels, metrics=name)
    assert list(alone) == [name]
    assert alone[name] == together[name]
    assert "±" in alone.table() or name not in ("nmi", "ami", "f1")


@pytest.mark.parametrize("base", [2**24, 2**31, 2**53, 2**62, 2**70, -(2**53)])
def test_large_ids_stay_apart(base):
    points = np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.02, 1.0]], dtype=np.float32)
    scores = evaluate(points, [base, base + 1, base, base + 1], metrics="recall@1")
    assert scores["recall@1"] == 0
    assert evaluate(points, [base, base, base + 1, base + 1], metrics="recall@1")["recall@1"] == 1
    if base < 2**63:
        assert evaluate(points, torch.tensor([base, base + 1] * 2), metrics="recall@1")["recall@1"] == 0


def test_ids_around_the_signed_range_stay_apart():
    points = np.eye(4, dtype=np.float32)
    unsigned = np.array([2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], dtype=np.uint64)
    signed = np.array([2**63 - 1, -1, 5, 6])
    scores = evaluate(points, unsigned, queries=(points, signed), metrics="recall@1")
    assert (scores.queries, scores.dropped, scores["recall@1"]) == (1, 3, 1.0)
    assert evaluate(points, [-1, 2**63, -1, 2**63], metrics="recall@4")["recall@4"] == 1


def test_negative_similarities_are_ranked_like_any_other():
    gallery = np.array([[-1.0, 0.1], [-1.0, 0.5], [-1.0, 2.0]], dtype=np.float32)
    scores = evaluate(gallery, ["far", "far", "near"], queries=([[1.0, 0.0]], ["near"]), metrics="mrr")
    assert scores["mrr"] == 1


def test_zero_rows_have_cosine_zero():
    gallery = np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    scores = evaluate(gallery, [0, 1, 2], queries=([[1.0, 0.0]] * 3, [0, 1, 2]), metrics="mrr")
    assert scores.per_query()["first"].tolist() == [3, 2, 1]
    zero_query = evaluate(gallery, [0, 1, 2], queries=([[0.0, 0.0]], [2]), metrics="mrr")
    assert zero_query.per_query()["first"].tolist() == [3]


def test_scale_of_rows_changes_euclidean_only():
    points, labels = blobs()
    scale = np.random.default_rng(1).uniform(0.1, 10, (len(points), 1)).astype(np.float32)
    assert evaluate(points, labels) == evaluate(points * scale, labels)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    assert evaluate(unit, labels, distance="euclidean") == evaluate(points, labels)
    assert evaluate(points * scale, labels, distance="euclidean") != evaluate(points, labels)


@pytest.mark.parametrize("scale", [1e-18, 1e15])
def test_extreme_lengths(scale):
    points, labels = blobs()
    assert evaluate(points * np.float32(scale), labels) == evaluate(points, labels)


def test_euclidean_far_from_the_origin():
    points, labels = blobs()
    moved = (points.astype(np.float64) + 1000).astype(np.float32)
    far, near = (evaluate(p, labels, distance="euclidean", metrics="map@r")["map@r"] for p in (moved, points))
    assert far == pytest.approx(near, abs=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_half_precision_is_computed_in_float32(dtype, distance):
    points, labels = blobs(rows=5000, classes=40)
    half = torch.from_numpy(points).to(dtype)
    assert evaluate(half, labels, distance=distance) == evaluate(half.float(), labels, distance=distance)


def test_integer_embeddings():
    points = np.random.default_rng(0).integers(-3, 4, (40, 5))
    labels = np.arange(40) % 4
    assert evaluate(points, labels) == evaluate(points.astype(np.float32), labels)


@pytest.mark.parametrize("kind", ["few", "many", "multi-hot"])
def test_block_size_does_not_change_a_value(kind):
    rng = np.random.default_rng(0)
    points = rng.integers(-4, 5, (3000, 16)).astype(np.float32)
    labels = {
        "few": rng.integers(0, 700, 3000),
        "many": rng.integers(0, 8, 3000),
        "multi-hot": rng.random((3000, 30)) < 0.05,
    }[kind]
    small, large = (evaluate(points, labels, memory_mb=mb).per_query() for mb in (1, 512))
    for name, column in small.items():
        np.testing.assert_array_equal(column, large[name], err_msg=name)


def test_ignored_rows_neither_help_nor_harm():
    points, labels = blobs(rows=60, classes=5)
    ignore = [np.random.default_rng(q).choice(60, 10, replace=False) for q in range(60)]
    mask = np.zeros((60, 60), dtype=bool)
    for q, rows in enumerate(ignore):
        mask[q, rows] = True
    listed = evaluate(points, labels, ignore=ignore).per_query()
    masked = evaluate(points, labels, ignore=mask).per_query()
    for q in range(60):
        kept = np.setdiff1d(np.arange(60), [*ignore[q], q])
        alone = evaluate(points[kept], labels[kept], queries=(points[q : q + 1], labels[q : q + 1])).per_query()
        for name in ("recall@1", "map@r", "ndcg@8", "mrr", "positives"):
            assert listed[name][q] == masked[name][q] == alone[name][0]


def test_multi_hot_of_one_label_equals_plain_labels():
    points, labels = blobs()
    assert evaluate(points, np.eye(20, dtype=int)[labels]) == evaluate(points, labels)


def test_memory_stays_below_its_limit():
    """60 MB allowed where all similarities take 400 MB; few positives a query, then many. In a fresh process."""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    code = """
import numpy as np, torch
from nearfar.metrics import evaluate
read = lambda field: int(open("/proc/self/status").read().split(field + ":")[1].split()[0]) / 1024
torch.set_num_threads(1)
rng = np.random.default_rng(0)
points = rng.standard_normal((10_000, 16), dtype=np.float32)
evaluate(points[:500], np.arange(500) % 7)
before = read("VmRSS")
evaluate(points, rng.integers(0, 2000, 10_000), memory_mb=60, metrics="map@r")
evaluate(points[:5000], rng.integers(0, 3, 5000), memory_mb=60)
print(read("VmHWM") - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert float(run.stdout or "inf") < 120, run.stdout + run.stderr


def test_clustering_far_from_the_origin_is_clustering():
    g = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 30)
    points = g.normal(size=(10, 8))[labels] * 3 + g.normal(size=(300, 8)) * 0.6
    near = evaluate(points, labels, metrics=("nmi", "silhouette"), distance="euclidean")
    far = evaluate(points + 1e4, labels, metrics=("nmi", "silhouette"), distance="euclidean")
    assert far["silhouette"] == pytest.approx(near["silhouette"], abs=1e-4)
    assert far["nmi"] == pytest.approx(near["nmi"], abs=0.02)


def test_a_trailing_at_is_no_metric_of_its_own():
    rows, labels = np.eye(4), [0, 0, 1, 1]
    assert list(evaluate(rows, labels, metrics="mrr@")) == ["mrr"]


def test_with_an_index_mrr_does_not_depend_on_what_else_is_asked():
    faiss = pytest.importorskip("faiss")
    g = np.random.default_rng(0)
    rows, labels = g.normal(size=(300, 8)).astype(np.float32), g.integers(30, size=300)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(8)
    index.add(unit)
    exact = evaluate(rows, labels, metrics="mrr")["mrr"]
    assert evaluate(rows, labels, metrics="mrr", index=index)["mrr"] == pytest.approx(exact, abs=1e-6)
    assert evaluate(rows, labels, metrics=("mrr", "map"), index=index)["mrr"] == pytest.approx(exact, abs=1e-6)
    with pytest.raises(ValueError, match="METRIC_L2"):
        evaluate(rows, labels, index=index, distance="euclidean")
    scaled = faiss.IndexFlatL2(8)
    scaled.add(5 * rows)
    with pytest.raises(ValueError, match="add unit vectors"):
        evaluate(rows, labels, index=scaled)
