"""int8 and binary indexes: the binary codes against signs, recall, exact distances, removal and storage."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest

from nearfar.errors import NearfarError
from nearfar.search import Index
from nearfar.search.compressed import build_compressed

KINDS = ["int8", "binary"]


def clustered(count: int, dim: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(50, dim)) + 0.5  # not centered
    return centers[rng.integers(0, 50, count)] + 0.7 * rng.normal(size=(count, dim))


def test_binary_scores_are_products_with_signs() -> None:
    vectors = clustered(300, 16).astype(np.float32)
    faiss.normalize_L2(vectors)
    index = build_compressed("binary", vectors)
    rotation = faiss.vector_to_array(faiss.downcast_VectorTransform(index.chain.at(0)).A).reshape(16, 16)
    rotated = vectors @ rotation.T
    mean = rotated.mean(0)
    deviation = np.abs(rotated - mean).mean(0)
    assert not np.allclose(mean, 0, atol=0.1)
    decoded = mean + deviation * np.where(rotated > mean, 1, -1)
    query = clustered(1, 16, seed=1).astype(np.float32)
    expected = (query @ rotation.T) @ decoded.T
    scores, rows = index.search(query, 300)
    # faiss rounds the tables of products to eight bits
    np.testing.assert_allclose(scores[0], expected[0, rows[0]], atol=0.02 * np.ptp(expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [32, 30])
def test_recall_is_high_and_distances_are_exact(kind: str, dim: int) -> None:
    vectors, queries = np.split(clustered(4100, dim), [4000])
    index, exact = Index.from_vectors(vectors, kind=kind), Index.from_vectors(vectors, kind="exact")
    distances, ids = index.search(queries, 10)
    wanted, truth = exact.search(queries, 10)
    assert np.mean([np.isin(a, b).mean() for a, b in zip(truth, ids, strict=True)]) > 0.93
    assert index.measure(200) >= 0.93
    found = ids == truth
    assert (distances[found] == wanted[found]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_removed_vectors_are_not_found_and_added_ones_are(kind: str) -> None:
    vectors = clustered(1000, 16)
    index = Index.from_vectors(vectors, kind=kind)
    nearest = index.search(vectors[:1], 5)[1][0]
    index.remove(nearest[:3])
    assert not np.isin(index.search(vectors[:1], 100)[1], nearest[:3]).any()
    (new,) = index.add(vectors[:1])
    assert index.search(vectors[:1], 1)[1][0, 0] == new
    index.remove(index.ids[:400])  # the codes are made again
    assert index.approximate is not None
    assert index.approximate.removed_share == 0
    assert (index.search(vectors[:1], 700)[1][0][:598] >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_tiny_indexes(kind: str, count: int) -> None:
    vectors = clustered(5, 8)
    index = Index.from_vectors(vectors[:count], kind=kind) if count else Index.from_vectors(np.zeros((0, 8)), kind=kind)
    index.add(vectors[count:])
    exact = Index.from_vectors(vectors, kind="exact")
    assert index.search(vectors, 5)[1].tolist() == exact.search(vectors, 5)[1].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_index_gives_the_same_results(kind: str, tmp_path: Path) -> None:
    index = Index.from_vectors(clustered(2000, 32), kind=kind)
    index.save(tmp_path / "index")
    again = Index.load(tmp_path / "index")
    queries = clustered(10, 32, seed=2)
    for first, second in zip(index.search(queries, 7), again.search(queries, 7), strict=True):
        assert (first == second).all()
    bytes_per_vector = (next((tmp_path / "index").glob("*.faiss")).stat().st_size - 10_000) / 2000
    assert bytes_per_vector < (33 if kind == "int8" else 5)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = Index.from_vectors(clustered(500, 16), kind="int8")
    assert other.approximate is not None
    index = Index.from_vectors(clustered(500, 16), kind="binary")
    assert index.approximate is not None
    index.approximate.faiss = other.approximate.faiss
    index.save(tmp_path / "index")
    with pytest.raises(NearfarError, match="does not contain the expected binary index"):
        Index.load(tmp_path / "index")
