"""The comparison of the audit with cleanlab: planted copies and outliers, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.audit_peers import PLANTED, Finding, _our_neighbors, _our_outliers, _score, _with_copies, main
from nearfar.data import open_data


def test_copies_are_found_with_their_originals(vectors: str) -> None:
    data = open_data(vectors)
    originals = np.arange(10)
    x = _with_copies(data, originals, np.random.default_rng(0))["noise 10%"]
    assert len(x) == len(data) + 10
    labels = np.concatenate([data.labels, data.labels[:10]])
    exact = np.concatenate([x[: len(data)], x[:10]])
    groups = _our_neighbors(exact, labels)
    assert all(len(data) + row in groups[row] for row in range(10))
    outliers = _our_outliers(x, labels)
    assert outliers.flagged.shape == outliers.score.shape == (len(x),)


def test_scores_of_a_known_finding() -> None:
    found = Finding(np.array([True, True, False, False]), np.array([0.9, 0.8, 0.3, 0.1]))
    scores = _score(found, np.array([True, False, True, False]), 1.0)
    assert (scores["flagged"], scores["precision"], scores["recall"], scores["auroc"]) == (0.5, 0.5, 0.5, 0.75)


def test_the_report_has_a_table_for_each_dataset(tmp_path: Path) -> None:
    pytest.importorskip("cleanlab", reason="cleanlab is not installed: pip install cleanlab")
    main(["sketches", "--classes", "4", "--seeds", "1", "--results", str(tmp_path / "r.json")])
    (rows,) = json.loads((tmp_path / "r.json").read_text()).values()
    assert {row["tool"] for row in rows if row["task"] == "outliers"} == {"nearfar audit", "cleanlab"}
    assert PLANTED == 100
    main(["--merge", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "report.md")])
    assert "| outliers | nearfar audit |" in (tmp_path / "report.md").read_text()
