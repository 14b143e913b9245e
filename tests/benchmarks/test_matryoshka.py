"""The Matryoshka benchmark on a few vectors: rows, baselines and intervals."""

from __future__ import annotations

from pathlib import Path

from benchmarks.matryoshka import main


def test_the_report_compares_sizes_with_plain_training(vectors: str, tmp_path: Path) -> None:
    short = ["--set", "steps=4", "--set", "batches.size=24"]
    main([vectors, "--sizes", "4", "8", "--seeds", "2", *short, "--markdown", str(tmp_path / "report.md")])
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| ")][2:]
    names = ["Matryoshka, 4 of 8", "Matryoshka, 8 of 8", "plain, 4 of 8", "plain, 8 of 8", "plain, trained at 4"]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == names
    assert [" to " in row for row in rows] == [True, True, True, False, False]
