"""Near duplicates against all pairs, outliers, their tables and their page."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from nearfar.audit import audit, audit_data, find_near_duplicates, save_corrected
from nearfar.cli import main
from nearfar.data import Manifest, open_data, save_manifest


@pytest.fixture
def data() -> Manifest:
    """120 samples with a copy across splits, a copy with another label, three copies in one split, and two outliers."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    x = rng.normal(size=(6, 12))[labels] + 0.5 * rng.normal(size=(120, 12))
    for copy, original in ((110, 3), (25, 5), (41, 40), (42, 41)):
        x[copy] = x[original] + 1e-3 * rng.normal(size=12)
    x[70], x[90] = 3 * rng.normal(size=12), 3 * rng.normal(size=12)
    split = np.where(np.arange(120) < 100, "train", "test")
    return Manifest(labels=labels, classes=tuple("abcdef"), split=split, features=x.astype(np.float32))


def test_groups_are_those_of_all_pairs(data: Manifest) -> None:
    assert data.features is not None
    result = audit(data.features, data.labels, classes=data.classes)
    found = find_near_duplicates(result, data.features, data.split)
    x = data.features - data.features.mean(0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    distance = 1 - x @ x.T
    np.fill_diagonal(distance, np.inf)
    limit = 0.13 * np.median(distance.min(1))
    pairs = {tuple(sorted(pair)) for pair in np.argwhere(distance < limit).tolist()}
    assert pairs == {(3, 110), (5, 25), (40, 41), (40, 42), (41, 42)}
    assert [group.rows.tolist() for group in found.groups] == [[3, 110], [5, 25], [40, 41, 42]]
    assert [group.is_across_splits for group in found.groups] == [True, False, False]
    assert [group.has_several_labels for group in found.groups] == [True, True, False]
    assert found.groups[0].distance == pytest.approx(distance[3, 110], abs=1e-6)
    mean = np.sort(distance, axis=1)[:, :10].mean(1)
    np.testing.assert_allclose(found.distance, mean, atol=1e-5)
    cosine = np.log(1 - mean)
    low, high = np.percentile(cosine, [25, 75])
    assert found.outliers.tolist() == np.argsort(-mean)[: (cosine < low - 1.5 * (high - low)).sum()].tolist()
    assert len(found.outliers) > 0


def test_samples_without_similar_neighbors_are_outliers_although_distances_are_bounded() -> None:
    """The distances within a class spread so widely that three interquartile ranges exceed the largest distance."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 30)
    spread = np.linspace(0.05, 0.13, 30)[np.arange(300) % 30, None]
    x = np.eye(10, 128)[labels] + spread * rng.normal(size=(300, 128))
    planted = rng.normal(size=(12, 128))
    x, labels = np.concatenate([x, planted]), np.concatenate([labels, np.arange(12) % 10])
    found = find_near_duplicates(audit(x, labels), x, np.full(len(x), "train"))
    assert set(range(300, 312)) <= set(found.outliers.tolist())
    assert len(found.outliers) <= 20


def test_exact_copies_are_found_even_if_most_samples_are_copies() -> None:
    rng = np.random.default_rng(1)
    x = np.repeat(rng.normal(size=(30, 8)), 2, axis=0)
    found = find_near_duplicates(audit(x, np.arange(60) % 3), x, np.full(60, "train"))
    assert sorted(group.rows.tolist() for group in found.groups) == [[2 * i, 2 * i + 1] for i in range(30)]


def test_tables_can_be_applied_and_the_page_shows_groups(data: Manifest, tmp_path: Path) -> None:
    audit_data(data, data.features, tmp_path)
    with open(tmp_path / "duplicates.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["group"], row["row"], row["split"]) for row in rows[:3]] == [
        ("1", "3", "train"),
        ("1", "110", "test"),
        ("2", "5", "train"),
    ]
    rows[1]["decision"] = "remove"
    with open(tmp_path / "filled.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    save_corrected(data, tmp_path / "filled.csv", tmp_path / "corrected.npz")
    assert len(open_data(tmp_path / "corrected.npz")) == 119
    page = (tmp_path / "index.html").read_text()
    assert page.count('<div class="group">') == 3
    assert "across splits, different labels" in page
    assert '<section id="outliers">' in page


def test_the_command_prints_the_counts(data: Manifest, tmp_path: Path) -> None:
    save_manifest(data, tmp_path / "data.npz")
    result = CliRunner().invoke(main, ["audit", str(tmp_path / "data.npz"), "--out", str(tmp_path / "found")])
    assert result.exit_code == 0, result.output
    assert "3 groups of near duplicates, 1 of them across splits" in result.output
    assert (tmp_path / "found" / "outliers.csv").is_file()
