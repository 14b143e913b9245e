"""The Matryoshka benchmark on a few vectors: rows, baselines and intervals."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.matryoshka import main, measure_seed


def test_the_report_compares_sizes_with_plain_training(vectors: str, tmp_path: Path) -> None:
    short = ["--set", "steps=4", "--set", "batches.size=24"]
    main([vectors, "--sizes", "4", "8", "--seeds", "2", *short, "--markdown", str(tmp_path / "report.md")])
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| ")][2:]
    names = ["Matryoshka, 4 of 8", "Matryoshka, 8 of 8", "plain, 4 of 8", "plain, 8 of 8", "plain, trained at 4"]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == names
    assert ["(" in row for row in rows] == [True, True, True, False, False]


def test_stored_seeds_are_not_trained_again(vectors: str, tmp_path: Path) -> None:
    names = ["Matryoshka, 4 of 8", "Matryoshka, 8 of 8", "plain, 4 of 8", "plain, 8 of 8", "plain, trained at 4"]
    rows = [{"seed": seed, "scores": {name: seed + i for i, name in enumerate(names)}} for seed in range(4)]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stored = ["--results", str(tmp_path / "r.jsonl"), "--markdown", str(tmp_path / "report.md")]
    main([vectors, "--sizes", "4", "8", "--seeds", "4", "--test-per-class", "5", *stored])
    report = (tmp_path / "report.md").read_text()
    assert "| Matryoshka, 4 of 8 | 1.50 | -4.00 (-4.00 to -4.00) |" in report
    assert "--seeds 4 --test-per-class 5" in report


def test_fewer_test_samples_give_other_scores_and_the_same_rows(vectors: str) -> None:
    short = ["steps=2", "batches.size=24"]
    few = measure_seed(vectors, "proxy-anchor", 0, [4, 8], short, 3)
    assert list(few) == list(measure_seed(vectors, "proxy-anchor", 0, [4, 8], short))
    # each of the six test classes has three samples, so that scores are multiples of 1 / 18
    assert all(abs(value * 0.18 - round(value * 0.18)) < 1e-6 for value in few.values())
