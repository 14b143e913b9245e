"""Index against a plain dict through any sequence of changes; recall of approximate kinds; invalid arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.search import Index
from nearfar.search.approximate import choose_kind
from nearfar.search.exact import Vectors


def clustered(count: int, dim: int, *, clusters: int = 60, seed: int = 0) -> Vectors:
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(clusters, dim))
    rows: Vectors = (centers[rng.integers(0, clusters, count)] + 0.6 * rng.normal(size=(count, dim))).astype(np.float32)
    return rows


class Oracle:
    """A reference index: a dict from id to vector, label and name, in insertion order."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[np.ndarray[Any, Any], str, str]] = {}

    def nearest(self, query: Any, k: int, label: str | None) -> list[tuple[float, int]]:
        unit = query / np.linalg.norm(query)
        far = [
            (1 - float(unit @ (vector / np.linalg.norm(vector))), number)
            for number, (vector, name, _) in self.rows.items()
            if label in (None, name)
        ]
        return sorted(far, key=lambda pair: pair[0])[:k]


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivf-pq"])
@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_changes_matches_a_dict(kind: str, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    classes = ["ant", "bee", "owl"]
    start = clustered(300, 6, seed=seed)
    labels = rng.integers(0, 3, 300)
    index = Index.from_vectors(start, labels=labels, classes=classes, kind=kind)
    oracle = Oracle()
    oracle.rows = {i: (start[i].astype(float), classes[labels[i]], f"row {i}") for i in range(300)}
    for step in range(15):
        change = rng.choice(["add", "add named", "remove", "save", "new class"])
        if change == "save":
            index.save(tmp_path / "index")
            index = Index.load(tmp_path / "index", mmap=bool(rng.integers(2)))
        elif change == "remove":
            gone = rng.choice(list(oracle.rows), int(rng.integers(1, 1 + len(oracle.rows) // 8)), replace=False)
            index.remove(gone)
            for number in gone.tolist():
                del oracle.rows[number]
        else:
            count = int(rng.integers(0, 12))
            more, own = rng.normal(size=(count, 6)), rng.integers(0, 2, count)
            words = ["owl", f"class {step}"] if change == "new class" else list(index.classes)
            named = {
                "ids": rng.permutation(count) + 1000 * (step + 1),
                "names": [f"{step}/{i}.png" for i in range(count)],
            }
            numbers = index.add(
                more,
                labels=own,
                classes=words if change == "new class" else None,
                **(named if change == "add named" else {}),
            )
            names = named["names"] if change == "add named" else [f"row {i}" for i in numbers.tolist()]
            for i, number in enumerate(numbers.tolist()):
                assert number not in oracle.rows
                oracle.rows[number] = (more[i].astype(np.float32).astype(float), words[own[i]], names[i])
        assert index.ids.tolist() == list(oracle.rows)
        assert list(index.names) == [name for _, _, name in oracle.rows.values()]
        assert [index.label_of(row) for row in range(len(index))] == [label for _, label, _ in oracle.rows.values()]
        some = int(rng.choice(index.ids))
        own_vector = oracle.rows[some][0]
        np.testing.assert_allclose(index.vector_of(some), own_vector / np.linalg.norm(own_vector), atol=1e-6)
        found = 0
        for query in rng.normal(size=(8, 6)):
            for label in (None, "owl"):
                distances, ids = index.search(query[None], k=5, label=label)
                wanted = oracle.nearest(query, 5, label)
                found += len(set(ids[0].tolist()) & {number for _, number in wanted}) if label is None else 0
                if label is not None or kind == "exact":
                    assert ids[0, : len(wanted)].tolist() == [number for _, number in wanted]
                far = {number: d for d, number in oracle.nearest(query, len(oracle.rows), label)}
                for number, distance in zip(ids[0].tolist(), distances[0].tolist(), strict=True):
                    assert number == -1 or abs(far[number] - distance) < 1e-5
        assert found >= 0.9 * 8 * min(5, len(index))
    assert index.measure() > 0.9


@pytest.mark.parametrize("kind", ["hnsw", "ivf-pq"])
def test_approximate_kinds_reach_and_measure_their_recall(kind: str, tmp_path: Path) -> None:
    vectors = clustered(6000, 30)  # 30 is not a multiple of four, the numbers per code
    index = Index.from_vectors(vectors, kind=kind)
    recall = index.measure(sample=300)
    assert 0.95 <= recall <= 1
    exact = Index.from_vectors(vectors)
    queries = vectors[::60] + 0.3 * np.random.default_rng(9).normal(size=(100, 30))
    (near, ids), (exactly, right) = index.search(queries), exact.search(queries)
    share = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids.tolist(), right.tolist(), strict=True)])
    assert share > 0.9
    same = ids == right
    if kind == "hnsw":
        # The cosines come from faiss and differ in the last digits.
        np.testing.assert_allclose(near[same], exactly[same], rtol=0, atol=1e-6)
    else:
        assert np.array_equal(near[same], exactly[same])
    # A search with little effort finds less, and `measure` reports it.
    assert index.approximate is not None
    index.approximate.effort = 1
    if kind == "ivf-pq":
        assert index.measure(sample=300) < recall
    assert exact.measure(sample=50) == 1.0


def test_removed_vectors_are_never_found() -> None:
    vectors = clustered(1000, 8)
    index = Index.from_vectors(vectors, kind="hnsw")
    index.remove(np.arange(200))
    assert index.approximate is not None
    assert index.approximate.slots is not None  # still the graph of all vectors
    assert index.search(vectors[:50], 10)[1].min() >= 200
    assert index.measure() > 0.95
    index.remove(np.arange(200, 600))
    assert index.approximate.slots is None  # rebuilt
    assert index.search(vectors[:600], 10)[1].min() >= 600
    index.remove(index.ids)
    assert index.search(vectors[:2], 3)[1].tolist() == [[-1] * 3] * 2
    index.add(vectors[:2])
    assert index.search(vectors[:2], 1)[0].max() < 1e-6


def test_filters_are_exact_for_every_kind() -> None:
    vectors, labels = clustered(2000, 12), np.arange(2000) % 40
    classes = [f"kind {i}" for i in range(40)]
    exact = Index.from_vectors(vectors, labels=labels, classes=classes)
    queries = clustered(30, 12, seed=3)
    for kind in ("hnsw", "ivf-pq"):
        index = Index.from_vectors(vectors, labels=labels, classes=classes, kind=kind)
        for label in ("kind 7", ["kind 7", "kind 31"]):
            for one, other in zip(
                index.search(queries, 60, label=label), exact.search(queries, 60, label=label), strict=True
            ):
                assert np.array_equal(one, other)
    distances, ids = exact.search(queries, 60, label="kind 7")
    assert (labels[ids[:, :50]] == 7).all()
    assert (ids[:, 50:] == -1).all()
    assert np.isinf(distances[:, 50:]).all()
    assert (np.diff(distances[:, :50], axis=1) >= 0).all()


def test_auto_is_exact_up_to_two_hundred_thousand() -> None:
    assert Index.from_vectors(clustered(10, 3)).kind == "exact"
    assert [choose_kind(n) for n in (200_000, 200_001, 2_000_001)] == ["exact", "hnsw", "ivf-pq"]


def test_unnormalized_zero_and_empty_input() -> None:
    index = Index.from_vectors(torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True))
    assert index.vectors.tolist() == [[np.float32(0.6), np.float32(0.8)], [0.0, 0.0]]
    distances, ids = index.search(torch.tensor([[-30.0, -40.0]]), 2)
    assert ids.tolist() == [[1, 0]]
    assert np.allclose(distances, [[1, 2]])
    empty = Index.from_vectors(np.zeros((0, 4)))
    assert empty.search(np.ones((1, 4)), 2)[1].tolist() == [[-1, -1]]
    assert empty.add(np.eye(4)).tolist() == [0, 1, 2, 3]
    assert len(empty) == 4


def test_very_long_vectors_do_not_change_the_others() -> None:
    rows = clustered(4, 5)
    alone = Index.from_vectors(rows).vectors
    long = np.array([[1e19, 0, 0, 1e19, 0], [1.5e19, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=np.float32)
    index = Index.from_vectors(np.concatenate([long, rows]))
    assert np.array_equal(index.vectors[3:], alone)
    np.testing.assert_allclose(index.vectors[0], np.array([1, 0, 0, 1, 0]) / np.sqrt(2), atol=1e-6)
    assert index.vectors[1:3].tolist() == [[1, 0, 0, 0, 0], [0] * 5]
    assert long[0, 0] == np.float32(1e19)


@pytest.mark.parametrize("kind", ["hnsw", "ivf-pq"])
def test_approximate_result_does_not_depend_on_the_batch(kind: str) -> None:
    vectors = clustered(2000, 24)
    vectors[1000:1300] = vectors[:300]
    index = Index.from_vectors(vectors, kind=kind)
    together = index.search(vectors[:40], 7)
    for row in range(40):
        alone = index.search(vectors[row : row + 1], 7)
        assert np.array_equal(alone[0][0], together[0][row])
        assert np.array_equal(alone[1][0], together[1][row])
    near, ids = together
    assert ids[:, :2].tolist() == [[row, row + 1000] for row in range(40)]
    assert (near[:, 0] == near[:, 1]).all()


def test_effort_applies_to_the_next_search() -> None:
    index = Index.from_vectors(clustered(3000, 16), kind="ivf-pq")
    assert index.approximate is not None
    queries = clustered(50, 16, seed=4)
    tuned = index.search(queries, 10)[1]
    effort, index.approximate.effort = index.approximate.effort, 1
    assert not np.array_equal(index.search(queries, 10)[1], tuned)
    index.approximate.effort = effort
    assert np.array_equal(index.search(queries, 10)[1], tuned)


def test_new_ids_continue_from_the_largest() -> None:
    index = Index.from_vectors(np.eye(3), ids=[7, 2, 40])
    assert index.add(np.eye(3)[:2]).tolist() == [41, 42]
    index.remove([2])
    assert index.search(np.eye(3)[1:2], 2)[1].tolist() == [[42, 7]]
    assert index.names == ["row 7", "row 40", "row 41", "row 42"]


LABELED: dict[str, Any] = {"labels": [0, 1, 1], "classes": ("ant", "owl")}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda i: i.search(np.ones(3)), "queries must be a numeric array of shape [N, d], got float64 of shape [3]"),
        (lambda i: i.search(np.ones((2, 4))), "queries must have 3 columns, got shape [2, 4]"),
        (lambda i: i.search([[np.nan, 1, 2]]), "queries has NaN"),
        (lambda i: i.search(np.ones((1, 3)), 0), "k must be an integer of at least 1, got 0"),
        (
            lambda i: i.search(np.ones((1, 3)), label="awl"),
            "'awl' is not a class of the index; did you mean 'owl'?",
        ),
        (lambda i: i.vector_of(9), "id 9 is not in the index: its 3 ids are in 0..2"),
        (lambda i: i.remove([0, -1]), "id -1 is not in the index"),
        (lambda i: i.add(np.ones((1, 3))), "labels are required: the index has labels"),
        (lambda i: i.add(np.ones((1, 3)), labels=[2]), "labels must be in 0..1, got 2..2"),
        (lambda i: i.add(np.ones((2, 3)), labels=[0, 0], ids=[5, 5]), "ids must be distinct, got 5 2 times"),
        (lambda i: i.add(np.ones((1, 3)), labels=[0], ids=[2]), "ids must be new, but 2 is already in the index"),
        (lambda i: i.add(np.ones((1, 3)), labels=[0], ids=[-4]), "ids must be 0 or above"),
        (lambda i: i.add(np.ones((1, 3)), labels=[0], names=["a", "b"]), "names must be 1 strings"),
        (lambda i: i.measure(sample=0), "sample must be an integer of at least 1"),
        (lambda _: Index.from_vectors(np.eye(3), kind="hsnw"), "did you mean 'hnsw'?"),
        (
            lambda _: Index.from_vectors(np.eye(3), kind="ivf-pq"),
            "needs at least 256 vectors",
        ),
        (lambda _: Index.from_vectors(np.eye(3), labels=[0, 1, 2], classes=("a", "a", "b")), "distinct names"),
        (lambda _: Index.from_vectors(np.eye(3), labels=[0, 1, 1 << 40]), "pass the class names as classes="),
        (lambda _: Index.from_vectors(np.eye(3)).search(np.eye(3), label="a"), "the index has no labels"),
        (
            lambda _: Index.from_vectors(np.eye(3)).add(np.eye(3), labels=[0, 0, 0]),
            "labels must be None",
        ),
    ],
)
def test_invalid_arguments(call: Any, message: str) -> None:
    index = Index.from_vectors(np.eye(3), **LABELED)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(index)
    assert index.ids.tolist() == [0, 1, 2]
    assert len(index.names) == len(index.vectors) == 3


def test_search_works_with_patched_faiss() -> None:
    script = """
import faiss.contrib.torch_utils
import numpy as np
from nearfar.search import Index
rows = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
for kind in ("exact", "hnsw", "ivf-pq"):
    assert Index.from_vectors(rows, kind=kind).search(rows[:3], 1)[1].ravel().tolist() == [0, 1, 2], kind
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("others", [0, 2])
def test_non_finite_queries_are_refused(kind: str, k: int, others: int) -> None:
    index = Index.from_vectors(clustered(300, 8), kind=kind)
    good = clustered(others, 8)
    for bad, message in (
        (np.nan, "queries has NaN"),
        (np.inf, "queries has"),
        (1e30, "the norm of a vector overflows"),
    ):
        with pytest.raises(ValueError, match=message):
            index.search(np.concatenate([good, np.full((1, 8), bad)]), k)
    distances, _ = index.search(np.concatenate([good, np.zeros((1, 8))]), k)
    assert (distances[-1] == 1).all()
