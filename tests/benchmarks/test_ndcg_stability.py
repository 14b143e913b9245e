"""The statistics of metric stability, against direct formulas, and the report."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import ndcg_stability as stability
from nearfar.suites.results import ResultsFile, read_results
from nearfar.suites.suite_file import suite_from_dict
from nearfar.training import train
from training_cases import configured

VALUES = np.random.default_rng(0).normal(0.5, 0.05, (4, 6))


def test_relative_deviation_is_in_units_of_the_mean() -> None:
    values = np.array([[1.0, 3.0], [10.0, 30.0]])
    assert stability.relative_deviation(values) == pytest.approx(np.sqrt(2) / 2)
    assert stability.relative_deviation(5 * values) == pytest.approx(np.sqrt(2) / 2)


def test_discriminability_is_f_over_n_of_the_two_way_layout() -> None:
    methods, columns = VALUES.shape
    grand = VALUES.mean()
    noise = sum(
        (VALUES[i, j] - VALUES[i].mean() - VALUES[:, j].mean() + grand) ** 2
        for i in range(methods)
        for j in range(columns)
    ) / ((methods - 1) * (columns - 1))
    between = sum((VALUES[i].mean() - grand) ** 2 for i in range(methods)) / (methods - 1)
    assert stability.discriminability(VALUES) == pytest.approx(between / noise)
    # neither a unit nor what a seed changes for all methods alike matters
    assert stability.discriminability(100 * VALUES + np.arange(6)) == pytest.approx(between / noise)
    # methods that are twice as far apart, with the same noise
    means = VALUES.mean(axis=1, keepdims=True)
    assert stability.discriminability(VALUES + means) == pytest.approx(4 * between / noise)
    assert np.isnan(stability.discriminability(np.ones((3, 4))))


def test_rank_agreement_is_the_mean_of_kendalls_tau() -> None:
    taus = []
    for a, b in combinations(range(VALUES.shape[1]), 2):
        pairs = list(combinations(range(len(VALUES)), 2))
        same = sum((VALUES[i, a] > VALUES[j, a]) == (VALUES[i, b] > VALUES[j, b]) for i, j in pairs)
        taus.append((2 * same - len(pairs)) / len(pairs))
    assert stability.rank_agreement(VALUES) == pytest.approx(np.mean(taus))
    order = np.arange(3)[:, None] + np.zeros(4)
    assert stability.rank_agreement(order) == 1
    assert stability.rank_agreement(np.stack([[0.0, 1.0], [1.0, 0.0]])) == -1


def test_the_interval_covers_the_true_ratio() -> None:
    rng = np.random.default_rng(1)
    means = np.linspace(0.4, 0.6, 6)[:, None]  # variance 0.0056
    covered, higher = 0, 0
    for _ in range(200):
        noise = rng.normal(size=(6, 5))
        noisy, quiet = means + 0.03 * noise, means + 0.015 * (0.8 * noise + 0.6 * rng.normal(size=(6, 5)))
        found = stability.ratio_interval(quiet, noisy)  # the deviation is half: the ratio is four
        covered += found.low <= 4 <= found.high
        higher += found.low > 1
    assert 0.88 <= covered / 200 <= 1
    assert higher / 200 > 0.5
    found = stability.ratio_interval(VALUES)
    assert found.value == pytest.approx(stability.discriminability(VALUES))
    assert found.low < found.value < found.high
    same = stability.ratio_interval(VALUES, 3 * VALUES)
    assert (same.low, same.value, same.high) == pytest.approx((1, 1, 1))


def test_halves_are_of_classes_or_of_each_class() -> None:
    labels = np.repeat(np.arange(10), 7)
    rng = np.random.default_rng(0)
    assert sorted(np.bincount(labels[stability.choose_half(labels, "classes", rng)], minlength=10)) == [0] * 5 + [7] * 5
    assert np.bincount(labels[stability.choose_half(labels, "samples", rng)]).tolist() == [3] * 10
    assert np.bincount(stability.choose_half(np.array([0, 0, 0, 1, 1]), "samples", rng) // 3).tolist() == [2, 2]


def results_file(path: Path) -> Path:
    """Three methods at two values of a sweep; one ignores the sweep, and one lacks a seed."""
    methods = [{"name": "a"}, {"name": "b"}, {"name": "fixed"}]
    tree = {"name": "s", "data": [{"name": "d"}], "methods": methods, "sweep": {"loss.k": [1, 2]}, "seeds": [0, 1, 2]}
    suite = suite_from_dict({**tree, "metrics": ["recall@8", "ndcg@8"]})
    rng = np.random.default_rng(2)
    with ResultsFile(path) as file:
        places = [
            {"data": "d", "method": m, "sweep": k, "seed": s, "id": f"{m}{'' if m == 'fixed' else k}{s}"}
            for m in ("a", "b", "fixed")
            for k in (1, 2)
            for s in (0, 1, 2)
        ]
        file.append({"kind": "suite", "suite": suite.to_dict(), "places": places})
        for cell in sorted({str(place["id"]) for place in places} - {"b21"}):
            scores = {"recall@8": 0.8 + 0.01 * rng.random(), "ndcg@8": 0.5 + 0.01 * rng.random()}
            file.append({"kind": "cell", "id": cell, "test": scores})
    return path


def test_scores_of_complete_methods_count_once(tmp_path: Path) -> None:
    results = read_results(results_file(tmp_path / "r.jsonl"))
    values = stability.seed_scores(results, "d")
    assert set(values) == {"recall@8", "ndcg@8"}
    assert values["ndcg@8"].shape == (4, 3)  # a at 1 and 2, b at 1, fixed once
    for row, name in zip(values["ndcg@8"], ("a1", "a2", "b1", "fixed"), strict=True):
        assert row.tolist() == [results.cells[f"{name}{seed}"]["test"]["ndcg@8"] for seed in (0, 1, 2)]


def test_the_report(vectors: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    runs = [tmp_path / name for name in ("proxy-anchor", "triplet")]
    for run in runs:
        train(configured("features", vectors, run.name), run, say=lambda _: None)
    capsys.readouterr()
    results = results_file(tmp_path / "r.jsonl")
    stability.main([*map(str, runs), "--results", str(results), "--repeats", "3"])
    torch.set_num_threads(threads)
    page = capsys.readouterr().out
    assert "## d: 4 methods, 3 seeds" in page
    assert page.count("| ndcg@8 / recall@8 | ") == 1
    for of in ("classes", "samples"):
        assert f"## 2 runs, 3 random halves of the test {of}" in page
    assert page.count("\n| map@r | ") == 2  # the results file does not have it
    halves = stability.half_scores(runs, of="classes", repeats=2)
    assert {values.shape for values in halves.values()} == {(2, 2)}
    with pytest.raises(SystemExit):
        stability.main([str(runs[0])])
    assert "one run cannot be compared" in capsys.readouterr().err
