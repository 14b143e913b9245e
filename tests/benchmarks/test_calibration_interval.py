"""The benchmark of the calibration interval on a few vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.calibration_interval import CHANGES, main
from nearfar.training import train
from training_cases import configured, saved_vectors


def test_larger_errors_are_measured_as_larger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = saved_vectors(tmp_path / "vectors.npz", classes=60, per_class=12, noise=0.8)
    train(configured("features", vectors, "proxy-anchor"), tmp_path / "run", say=lambda _: None)
    main([str(tmp_path / "run"), "--trials", "4"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = [[float(cell.strip(" %")) for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert len(rows) == len(CHANGES)
    true_errors, measured = [row[0] for row in rows], [row[1] for row in rows]
    # the first row has the fitted probabilities, and the third shifts their logits twice as far as the second
    assert true_errors[0] < true_errors[1] < true_errors[2]
    assert measured[2] > measured[0]
    assert all(0 <= contained <= 100 for row in rows for contained in row[3:])
