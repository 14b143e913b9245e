"""Clustering metrics against scikit-learn, and k-means."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.metrics.cluster import pair_confusion_matrix

from nearfar.metrics import adjusted_mutual_info, evaluate, normalized_mutual_info, pairwise_f1
from nearfar.metrics.kmeans import choose_centers, kmeans
from nearfar.metrics.silhouette import silhouette


def random_partitions(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 400))
    labels = rng.integers(0, rng.integers(1, 40), n)
    clusters = np.where(rng.random(n) < 0.5, labels, rng.integers(0, rng.integers(1, 60), n))
    return labels, clusters


@pytest.mark.parametrize("seed", range(40))
def test_agreement_with_scikit_learn(seed):
    labels, clusters = random_partitions(seed)
    assert normalized_mutual_info(labels, clusters) == pytest.approx(
        sk.normalized_mutual_info_score(labels, clusters), abs=1e-10
    )
    assert adjusted_mutual_info(labels, clusters) == pytest.approx(
        sk.adjusted_mutual_info_score(labels, clusters), abs=1e-8
    )
    (_, fp), (fn, tp) = pair_confusion_matrix(labels, clusters)
    assert pairwise_f1(labels, clusters) == pytest.approx(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 1.0)


@pytest.mark.parametrize("score", [normalized_mutual_info, adjusted_mutual_info, pairwise_f1])
def test_equal_partitions_score_one(score):
    for labels in (np.zeros(5, int), np.arange(5), np.array([0, 0, 1, 1, 2])):
        assert score(labels, labels) == pytest.approx(1)
        assert score(labels, 7 - labels) == pytest.approx(1)
    with pytest.raises(ValueError, match="labels and clusters"):
        score(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize("k", [1, 2, 5, 30])
def test_ndcg_agrees_with_scikit_learn(k):
    rng = np.random.default_rng(k)
    gallery, queries = rng.standard_normal((40, 6)), rng.standard_normal((25, 6))
    labels, asked = rng.integers(0, 5, 40), rng.integers(0, 5, 25)
    ours = evaluate(gallery, labels, queries=(queries, asked), metrics=f"ndcg@{k}")[f"ndcg@{k}"]
    cosine = queries @ (gallery / np.linalg.norm(gallery, axis=1, keepdims=True)).T
    assert ours == pytest.approx(sk.ndcg_score(asked[:, None] == labels, cosine, k=k), abs=1e-12)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_silhouette_agrees_with_scikit_learn(distance):
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(0, 6, 150), 6)
    points = rng.standard_normal((7, 4))[labels] + rng.standard_normal((151, 4))
    points[3] = 0
    expected = sk.silhouette_score(points, labels, metric=distance)
    for dtype, tolerance in ((np.float64, 1e-5), (np.float32, 1e-4)):
        scores = evaluate(points.astype(dtype), labels, metrics="silhouette", distance=distance, memory_mb=1)
        assert scores["silhouette"] == pytest.approx(expected, abs=tolerance)
    blocks = silhouette(torch.from_numpy(points).repeat(20, 1), np.tile(labels, 20), distance="euclidean", memory_mb=1)
    assert -1 <= blocks <= 1


def test_kmeans_finds_separate_blobs_and_repeats():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 30, 900)
    points = (20 * rng.standard_normal((30, 8))[labels] + rng.standard_normal((900, 8))).astype(np.float32)
    scores = evaluate(points, labels, metrics=("nmi", "f1", "ami"), distance="euclidean")
    assert scores["nmi"] > 0.97
    assert scores.spread["nmi"] < 0.03
    assert scores.queries == 0
    assert (kmeans(points, 30, seed=1) == kmeans(points, 30, seed=1)).all()
    assert len(np.unique(kmeans(points, 30, seed=2))) > 25


def test_kmeans_edges():
    points = np.zeros((10, 3), dtype=np.float32)
    assert len(kmeans(points, 4, seed=0)) == 10
    assert kmeans(np.eye(3, dtype=np.float32), 3, seed=0).tolist() == [0, 1, 2]
    assert (kmeans(np.eye(3, dtype=np.float32), 1, seed=0) == 0).all()


@pytest.mark.parametrize("clusters", [40, 1300])
def test_centers_are_in_almost_every_blob(clusters):
    """A uniform draw of k points hits 63 per cent of k equal blobs; above 512 centers are drawn in rounds."""
    rng = np.random.default_rng(0)
    blob = np.arange(4 * clusters) % clusters
    points = (100 * rng.standard_normal((clusters, 6))[blob] + rng.standard_normal((4 * clusters, 6))).astype(
        np.float32
    )
    centers = choose_centers(points, clusters, seed=0)
    assert len(np.unique(centers, axis=0)) == clusters
    hit = {int(blob[np.flatnonzero((points == center).all(1))[0]]) for center in centers}
    assert len(hit) > 0.85 * clusters
