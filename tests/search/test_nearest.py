"""Exact search against a plain loop: ties by row, filters, any batch, memory maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.search import nearest as module
from nearfar.search.nearest import Floats, nearest, ranked


def signed_axes(codes: list[int], dim: int = 3) -> Floats:
    """Unit rows whose products are exactly -1, 0 or 1, and zero rows: full of ties."""
    rows = np.zeros((len(codes), dim), dtype=np.float32)
    for row, code in zip(rows, codes, strict=True):
        if code:
            row[(abs(code) - 1) % dim] = np.sign(code)
    return rows


def brute(
    queries: Floats, vectors: Floats, k: int, rows: list[int] | None = None
) -> tuple[list[list[float]], list[list[int]]]:
    allowed = range(len(vectors)) if rows is None else rows
    distances, found = [], []
    for query in queries.astype(float):
        pairs = sorted((max(0.0, 1 - float(np.dot(query, vectors[i].astype(float)))), i) for i in allowed)[:k]
        pairs += [(float("inf"), -1)] * (k - len(pairs))
        distances.append([d for d, _ in pairs])
        found.append([i for _, i in pairs])
    return distances, found


def random_units(count: int, dim: int, seed: int = 0) -> Floats:
    x = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


axes = st.lists(st.integers(-3, 3), max_size=60)


@settings(deadline=None, max_examples=150)
@given(axes, st.lists(st.integers(-3, 3), min_size=1, max_size=7), st.integers(1, 12), st.data())
def test_ties_rank_by_row_as_in_a_loop(gallery: list[int], asked: list[int], k: int, data: st.DataObject) -> None:
    vectors, queries = signed_axes(gallery), signed_axes(asked)
    rows = data.draw(st.none() | st.sets(st.integers(0, max(0, len(gallery) - 1))).map(sorted))
    rows = None if rows is None or not gallery else rows
    distances, found = nearest(queries, vectors, k, rows=None if rows is None else np.array(rows, dtype=np.int64))
    wanted = brute(queries, vectors, k, rows)
    assert (distances.tolist(), found.tolist()) == wanted


@pytest.mark.parametrize("queries", [1, 3, 4, 60])
def test_as_a_loop_on_random_rows(queries: int) -> None:
    vectors, asked = random_units(3000, 20), random_units(queries, 20, seed=1)
    distances, found = nearest(asked, vectors, 15)
    wanted = brute(asked, vectors, 15)
    assert found.tolist() == wanted[1]
    np.testing.assert_allclose(distances, wanted[0], atol=2e-6)


@pytest.mark.parametrize("copies", [3, 12, 30, 500])
def test_equal_rows_far_apart_are_equally_far_and_in_order(copies: int) -> None:
    """More equals than any list of candidates, in different blocks and places of the products."""
    vectors = random_units(20_000, 37)
    places = np.sort(np.random.default_rng(2).choice(20_000, copies, replace=False))
    vectors[places] = vectors[places[0]]
    for asked in (vectors[places[:1]], vectors[places[[0] * 9]]):
        distances, found = nearest(asked, vectors, 10)
        for each, ids in zip(distances, found, strict=True):
            first = min(10, copies)
            assert ids[:first].tolist() == places[:first].tolist()
            assert len(set(each[:first].tolist())) == 1


def test_all_rows_equal() -> None:
    vectors = np.tile(random_units(1, 8), (5000, 1))
    assert nearest(vectors[:5], vectors, 4)[1].tolist() == [[0, 1, 2, 3]] * 5


def test_a_query_has_the_same_answer_alone_and_in_any_batch() -> None:
    vectors, asked = random_units(9000, 67), random_units(600, 67, seed=3)
    together = nearest(asked, vectors, 20)
    for start, stop in ((0, 1), (5, 8), (10, 100), (599, 600)):
        alone = nearest(asked[start:stop], vectors, 20)
        assert np.array_equal(alone[0], together[0][start:stop])
        assert np.array_equal(alone[1], together[1][start:stop])


def test_the_last_step_computes_as_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, asked = random_units(5000, 33), random_units(10, 33, seed=4)
    wanted = nearest(asked, vectors, 5)
    monkeypatch.setattr(module.math, "sqrt", lambda _: 1e9)  # nothing is ever clear
    distances, found = nearest(asked, vectors, 5)
    assert np.array_equal(found, wanted[1])
    assert np.array_equal(distances, wanted[0])


def test_rows_only_of_a_memory_map(tmp_path: Path) -> None:
    vectors = random_units(20_000, 16)
    np.save(tmp_path / "v.npy", vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    rows = np.arange(1, 20_000, 2)
    for asked in (random_units(1, 16, seed=5), random_units(7, 16, seed=5)):
        distances, found = nearest(asked, mapped, 6, rows=rows)
        assert (found % 2 == 1).all()
        part = nearest(asked, vectors[rows], 6)
        assert np.array_equal(found, rows[part[1]])
        assert np.array_equal(distances, part[0])
        assert np.array_equal(nearest(asked, mapped, 6)[1], nearest(asked, vectors, 6)[1])


def test_candidates_that_are_missing_come_last() -> None:
    vectors = signed_axes([1, 2, 3])
    distances, found = ranked(vectors[:1], vectors, np.array([[-1, 2, 0, -1]]), 5)
    assert found.tolist() == [[0, 2, -1, -1, -1]]
    assert distances.tolist() == [[0.0, 1.0, np.inf, np.inf, np.inf]]


def test_candidates_in_order_are_ranked_as_those_in_any_other() -> None:
    vectors, asked = random_units(500, 19), random_units(6, 19, seed=7)
    vectors[40] = vectors[90]
    asked[2] = vectors[90]
    distances, found = nearest(asked, vectors, 12)
    assert found[2, :2].tolist() == [40, 90]
    swapped = found.copy()
    swapped[2, :2] = [90, 40]
    # without the third query nothing is equal and nothing needs to be sorted
    for rows in ([0, 1, 2, 3, 4, 5], [0, 1, 3, 4, 5]):
        for order in (found, found[:, ::-1], swapped):
            again = ranked(asked[rows], vectors, order[rows], 12)
            assert np.array_equal(again[0], distances[rows])
            assert np.array_equal(again[1], found[rows])
