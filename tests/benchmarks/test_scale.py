"""The long measurements, made short: they run, and their numbers are of what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import evaluation, scale


@pytest.mark.parametrize("part", ["whole", "xi", "step", "shards"])
def test_every_part_of_scale(part: str, tmp_path: Path) -> None:
    out = tmp_path / "scale.json"
    sizes = ["--samples", "1500", "--batch", "32", "--classes", "50", "--repeats", "2", "--json", str(out)]
    scale.main([part, *sizes])
    (found,) = json.loads(out.read_text()).values()
    result: dict[str, Any] = found
    if part == "whole":
        assert 0 < result["map@r"] < result["recall@1"] <= 1
    if part == "xi":
        assert result["mean xi+"] > 0
    if part == "step":
        assert result["bytes"]["embeddings"] == 4 * 32 * 512  # float32, the default dimension
        assert all(times["clock"] > 0 for times in result["milliseconds"].values())
    if part == "shards":
        assert result["of this rank"] == 50
        assert result["last loss"] < result["first loss"]


def test_the_page_of_evaluation(tmp_path: Path) -> None:
    page, numbers = tmp_path / "e.md", tmp_path / "e.json"
    sizes = ["--samples", "1000", "--dim", "16", "--classes", "100", "--rounds", "1", "--threads", "1"]
    evaluation.main([*sizes, "--only", "faiss", "--markdown", str(page), "--json", str(numbers)])
    assert "full similarity matrix" in page.read_text()
    assert "faiss IndexFlatIP" in page.read_text()
    assert json.loads(numbers.read_text())
