"""benchmarks.databases on a few vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.databases import main


def test_figures_are_merged_and_exact_search_has_full_recall(tmp_path: Path) -> None:
    pytest.importorskip("sqlite_vec", reason="pip install -e '.[sqlite]'")
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    small = ["--vectors", "400", "--dim", "8", "--queries", "10", "--json", str(figures), "--markdown", str(page)]
    main([*small, "--only", "sqlite"])
    main([*small, "--only", "nearfar"])
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")][2:]
    assert next(row[:2] for row in rows) == ["| nearfar index", "exact"]
    assert rows[-1][0].startswith("| sqlite (sqlite-vec")
    assert rows[0][-1] == rows[-1][-1] == "100.0% |"
    assert all(float(row[3].replace(",", "")) > 0 for row in rows)
