"""Exact search against a plain loop: ties, filters, batches, memory maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.search import exact as module
from nearfar.search.exact import Vectors, rank_candidates, search_exact


def signed_axes(codes: list[int], dim: int = 3) -> Vectors:
    """Return unit vectors whose products are exactly -1, 0 or 1, and zero vectors: full of ties."""
    rows = np.zeros((len(codes), dim), dtype=np.float32)
    for row, code in zip(rows, codes, strict=True):
        if code:
            row[(abs(code) - 1) % dim] = np.sign(code)
    return rows


def brute(
    queries: Vectors, vectors: Vectors, k: int, rows: list[int] | None = None
) -> tuple[list[list[float]], list[list[int]]]:
    allowed = range(len(vectors)) if rows is None else rows
    distances, found = [], []
    for query in queries.astype(float):
        pairs = sorted((max(0.0, 1 - float(np.dot(query, vectors[i].astype(float)))), i) for i in allowed)[:k]
        pairs += [(float("inf"), -1)] * (k - len(pairs))
        distances.append([d for d, _ in pairs])
        found.append([i for _, i in pairs])
    return distances, found


def random_units(count: int, dim: int, seed: int = 0) -> Vectors:
    x = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


axes = st.lists(st.integers(-3, 3), max_size=60)


@settings(deadline=None, max_examples=150)
@given(axes, st.lists(st.integers(-3, 3), min_size=1, max_size=7), st.integers(1, 12), st.data())
def test_ties_rank_by_row(gallery: list[int], codes: list[int], k: int, data: st.DataObject) -> None:
    vectors, queries = signed_axes(gallery), signed_axes(codes)
    rows = data.draw(st.none() | st.sets(st.integers(0, max(0, len(gallery) - 1))).map(sorted))
    rows = None if rows is None or not gallery else rows
    distances, found = search_exact(queries, vectors, k, rows=None if rows is None else np.array(rows, dtype=np.int64))
    wanted = brute(queries, vectors, k, rows)
    assert (distances.tolist(), found.tolist()) == wanted


@pytest.mark.parametrize("count", [1, 3, 4, 60])
def test_matches_brute_force_on_random_vectors(count: int) -> None:
    vectors, queries = random_units(3000, 20), random_units(count, 20, seed=1)
    distances, found = search_exact(queries, vectors, 15)
    wanted = brute(queries, vectors, 15)
    assert found.tolist() == wanted[1]
    np.testing.assert_allclose(distances, wanted[0], atol=2e-6)


@pytest.mark.parametrize("copies", [3, 12, 30, 500])
def test_equal_vectors_have_equal_distances_in_row_order(copies: int) -> None:
    """There are more ties than candidates, in different blocks of the products."""
    vectors = random_units(20_000, 37)
    places = np.sort(np.random.default_rng(2).choice(20_000, copies, replace=False))
    vectors[places] = vectors[places[0]]
    for queries in (vectors[places[:1]], vectors[places[[0] * 9]]):
        distances, found = search_exact(queries, vectors, 10)
        for each, ids in zip(distances, found, strict=True):
            first = min(10, copies)
            assert ids[:first].tolist() == places[:first].tolist()
            assert len(set(each[:first].tolist())) == 1


def test_all_vectors_equal() -> None:
    vectors = np.tile(random_units(1, 8), (5000, 1))
    assert search_exact(vectors[:5], vectors, 4)[1].tolist() == [[0, 1, 2, 3]] * 5


def test_result_does_not_depend_on_the_batch() -> None:
    vectors, queries = random_units(9000, 67), random_units(600, 67, seed=3)
    together = search_exact(queries, vectors, 20)
    for start, stop in ((0, 1), (5, 8), (10, 100), (599, 600)):
        alone = search_exact(queries[start:stop], vectors, 20)
        assert np.array_equal(alone[0], together[0][start:stop])
        assert np.array_equal(alone[1], together[1][start:stop])


def test_full_comparison_matches_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = random_units(5000, 33), random_units(10, 33, seed=4)
    wanted = search_exact(queries, vectors, 5)
    monkeypatch.setattr(module.math, "sqrt", lambda _: 1e9)  # no query is ever decided
    distances, found = search_exact(queries, vectors, 5)
    assert np.array_equal(found, wanted[1])
    assert np.array_equal(distances, wanted[0])


def test_row_filter_on_a_memory_map(tmp_path: Path) -> None:
    vectors = random_units(20_000, 16)
    np.save(tmp_path / "v.npy", vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    rows = np.arange(1, 20_000, 2)
    for queries in (random_units(1, 16, seed=5), random_units(7, 16, seed=5)):
        distances, found = search_exact(queries, mapped, 6, rows=rows)
        assert (found % 2 == 1).all()
        part = search_exact(queries, vectors[rows], 6)
        assert np.array_equal(found, rows[part[1]])
        assert np.array_equal(distances, part[0])
        assert np.array_equal(search_exact(queries, mapped, 6)[1], search_exact(queries, vectors, 6)[1])


def test_missing_candidates_come_last() -> None:
    vectors = signed_axes([1, 2, 3])
    distances, found = rank_candidates(vectors[:1], vectors, np.array([[-1, 2, 0, -1]]), 5)
    assert found.tolist() == [[0, 2, -1, -1, -1]]
    assert distances.tolist() == [[0.0, 1.0, np.inf, np.inf, np.inf]]


def test_order_of_candidates_does_not_matter() -> None:
    vectors, queries = random_units(500, 19), random_units(6, 19, seed=7)
    vectors[40] = vectors[90]
    queries[2] = vectors[90]
    distances, found = search_exact(queries, vectors, 12)
    assert found[2, :2].tolist() == [40, 90]
    swapped = found.copy()
    swapped[2, :2] = [90, 40]
    # Without the third query there are no ties.
    for rows in ([0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5]):
        for order in (found, found[:, ::-1], swapped):
            again = rank_candidates(queries[rows], vectors, order[rows], 12)
            assert np.array_equal(again[0], distances[rows])
            assert np.array_equal(again[1], found[rows])
