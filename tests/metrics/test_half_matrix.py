"""Half of the product gives the positions of a stable full sort, whatever the rounding."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from metrics import oracle
from metrics.test_full_sort import NAMES, random_labels
from nearfar.metrics import evaluate, evaluation
from nearfar.metrics.exact import half_matrix
from nearfar.metrics.exact.half_matrix import evaluate_tiles
from nearfar.metrics.exact.symmetric_similarity import make_symmetric
from nearfar.metrics.relevance import match_labels
from nearfar.metrics.similarity import prepare_gallery, squared_norms
from nearfar.metrics.streaming import evaluate_blocks

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def prepared(rows, distance):
    return prepare_gallery(rows, squared_norms(rows), distance)


def columns_of(rows, labels, *, names=NAMES, distance="cosine", tile=64):
    return evaluate_tiles(names, prepared(rows, distance), match_labels(labels, labels), tile=tile, max_above=2)


def streamed(rows, labels, *, names=NAMES, distance="cosine"):
    everyone = np.arange(len(rows))
    gallery, relevance = prepared(rows, distance), match_labels(labels, labels)
    return evaluate_blocks(names, gallery, rows, relevance, rows=everyone, same_set=True, ignored=None, memory_mb=64)


def assert_sorted(columns, scores, labels, names=NAMES):
    """The columns are those of a stable sort of each row of `scores`."""
    lists = list(oracle.rankings(scores, labels, labels, True, None))
    positives = np.array([sum(relevant) for _, relevant in lists])
    np.testing.assert_array_equal(columns["positives"], positives)
    kept = np.flatnonzero(positives)
    assert np.isnan(columns["first"][positives == 0]).all()
    np.testing.assert_array_equal(columns["first"][kept], [lists[q][1].index(True) + 1 for q in kept])
    np.testing.assert_array_equal(columns["nearest"][kept], [lists[q][0][0] for q in kept])
    for name in names:
        expected = [oracle.metric(name, lists[q][1]) for q in kept]
        np.testing.assert_allclose(columns[name][kept], expected, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("case", range(80))
def test_equal_to_a_full_sort_on_a_grid(case):
    """Few levels: products are exact and ties are everywhere; singletons, one class, unequal classes, zero rows."""
    rng = np.random.default_rng(case)
    size, dim = int(rng.integers(2, 90)), int(rng.integers(1, 6))
    classes = int(rng.choice([1, 2, 5, 40]))
    points = rng.integers(-2, 3, (size, dim)).astype(np.float32)
    labels = random_labels(rng, size, classes, ("int", "text", "multi-hot", "large")[case % 4])
    if case % 8 == 0:
        labels = labels * rng.integers(0, 2, size)
    distance = ("cosine", "euclidean")[case // 4 % 2]
    names = NAMES if case % 3 else tuple(rng.choice(NAMES, 2, replace=False))
    rows = torch.from_numpy(points).to(DTYPES[case // 8 % 4])
    columns = columns_of(rows, labels, names=names, distance=distance, tile=int(rng.choice([1, 7, 32, 100])))
    assert_sorted(columns, oracle.similarities(points, points, distance), labels, names)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_copies_of_a_row_rank_by_position(distance, dtype):
    """Random numbers, every row up to five times under different labels: a tie is a tie in any tile."""
    rng = np.random.default_rng(0)
    base = torch.from_numpy(rng.standard_normal((60, 70))).to(dtype)
    rows, labels = base[torch.from_numpy(rng.integers(0, 60, 200))], rng.integers(0, 25, 200)
    wide = rows.double().numpy()
    scores = np.stack([(row * wide).sum(axis=1) for row in wide])
    squares = np.square(wide).sum(axis=1)
    scores = scores - squares / 2 if distance == "euclidean" else scores / np.sqrt(squares)
    assert_sorted(columns_of(rows, labels, distance=distance, tile=48), scores, labels)


@pytest.mark.parametrize("names", [NAMES, ("map@r", "r-precision"), ("recall@1",), ("ndcg@10",)])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_equal_to_the_stream(names, distance):
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(120), rng.integers(1, 15, 120))
    rng.shuffle(labels)
    rows = torch.from_numpy(
        rng.standard_normal((120, 32))[labels] + 1.5 * rng.standard_normal((len(labels), 32))
    ).float()
    ours, theirs = (way(rows, labels, names=names, distance=distance) for way in (columns_of, streamed))
    kept = theirs["positives"] > 0
    assert 0 < kept.sum() < len(kept)
    for name, column in theirs.items():
        np.testing.assert_array_equal(ours[name][kept], column[kept], err_msg=name)


@pytest.mark.parametrize("bound", [1e-3, 0.3, 10.0])
def test_the_error_bound_does_not_change_a_position(bound, monkeypatch):
    """Exact similarities decide all uncertain pairs; with a bound of 10 all pairs are uncertain."""
    rng = np.random.default_rng(2)
    rows, labels = torch.from_numpy(rng.standard_normal((150, 20))).float(), rng.integers(0, 40, 150)
    expected = columns_of(rows, labels)
    monkeypatch.setattr(
        half_matrix, "make_symmetric", lambda gallery: replace(make_symmetric(gallery), error_bound=bound)
    )
    for name, column in columns_of(rows, labels).items():
        np.testing.assert_array_equal(column, expected[name], err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("shift", [0, 1, 1000])
def test_a_product_is_within_the_error_bound(distance, dtype, shift):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((300, 200)) * 10.0 ** rng.integers(-3, 2, (300, 1)) + shift
    similarity = make_symmetric(prepared(torch.from_numpy(rows).to(dtype), distance))
    everything = slice(0, 300)
    product = (similarity.left_factor(everything) @ similarity.right_factor(everything).T).double().numpy()
    query, index = (each.ravel() for each in np.indices((300, 300)))
    exact = similarity.compute_pairs(query, index)[1].reshape(300, 300)
    error = np.abs(product - exact).max()
    assert 0 < error < similarity.error_bound < 1e-4
    np.testing.assert_allclose(exact, exact.T, rtol=0, atol=similarity.error_bound)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_pairs_do_not_depend_on_their_company(distance):
    rng = np.random.default_rng(4)
    similarity = make_symmetric(prepared(torch.from_numpy(rng.standard_normal((50, 77))), distance))
    query, index = rng.integers(0, 50, 1000), rng.integers(0, 50, 1000)
    together = similarity.compute_pairs(query, index)[0]
    alone = [similarity.compute_pairs(query[i : i + 1], index[i : i + 1])[0][0] for i in range(1000)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("power", [2.0**-50, 2.0**50])
def test_extreme_lengths(power, distance):
    rng = np.random.default_rng(5)
    rows, labels = torch.from_numpy(rng.standard_normal((200, 24))).float(), rng.integers(0, 50, 200)
    expected = columns_of(rows, labels, distance=distance)
    for name, column in columns_of(rows * power, labels, distance=distance).items():
        np.testing.assert_array_equal(column, expected[name], err_msg=name)


@pytest.mark.parametrize(
    ("size", "threads", "tile"), [(50, 1, 1), (333, 1, 7), (333, 2, 50), (333, 3, 64), (333, 5, 333)]
)
def test_threads_and_tiles_do_not_change_a_value(size, threads, tile):
    rng = np.random.default_rng(6)
    rows, labels = torch.from_numpy(rng.standard_normal((size, 16))).float(), rng.integers(0, size // 5, size)
    expected, before = columns_of(rows, labels, tile=1000), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for name, column in columns_of(rows, labels, tile=tile).items():
            np.testing.assert_array_equal(column, expected[name], err_msg=name)
    finally:
        torch.set_num_threads(before)


def blobs(noise, size=4200, dim=64):
    rng = np.random.default_rng(7)
    labels = rng.integers(0, size // 5, size)
    return (rng.standard_normal((size // 5, dim))[labels] + noise * rng.standard_normal((size, dim))).astype(
        np.float32
    ), labels


def test_evaluate_takes_half_the_product(monkeypatch):
    points, labels = blobs(noise=1.0)
    monkeypatch.setattr(half_matrix, "evaluate_tiles", lambda *_: None)
    expected = evaluate(points, labels).per_query()
    monkeypatch.undo()
    monkeypatch.setattr(evaluation, "evaluate_blocks", None)
    for name, column in evaluate(points, labels).per_query().items():
        np.testing.assert_array_equal(column, expected[name], err_msg=name)


def test_poor_rankings_make_it_give_up():
    points, labels = blobs(noise=30.0)
    assert evaluate_tiles(("map",), prepared(torch.from_numpy(points), "cosine"), match_labels(labels, labels)) is None
    assert 0 < evaluate(points, labels, metrics="map")["map"] < 0.1


def test_ties_make_it_give_up(monkeypatch):
    """1,200 samples are two tiles in each direction. Sorting equal similarities of more samples takes long."""
    monkeypatch.setattr(half_matrix, "MIN_SAMPLES", 1200)
    points, labels = blobs(noise=30.0, size=1200)
    same = np.ones_like(points)
    ready, relevance = prepared(torch.from_numpy(same), "cosine"), match_labels(labels, labels)
    assert evaluate_tiles(("mrr",), ready, relevance) is None
    assert half_matrix.try_half_matrix(("mrr",), ready, relevance, memory_mb=64) is None
    assert evaluate(same, labels, metrics="recall@1")["recall@1"] < 0.01


def test_many_positives_are_streamed():
    points, labels = blobs(noise=1.0)
    ready, few = prepared(torch.from_numpy(points), "cosine"), match_labels(labels, labels)
    many = match_labels(labels % 100, labels % 100)
    assert half_matrix.try_half_matrix(("map@r",), ready, few, memory_mb=64) is not None
    assert half_matrix.try_half_matrix(("map@r",), ready, few, memory_mb=1) is None, "the pairs do not fit"
    assert half_matrix.try_half_matrix(("map@r",), ready, many, memory_mb=64) is None, "42 a query"
