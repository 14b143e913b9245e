"""The measurement of the weight solver runs, and writes its page, its numbers and two complete figures."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import pacing_speed


def test_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    small = ["--samples", "180", "--seeds", "1", "--large", "300", "60", "8", "--rounds", "6", "--drawings", "4", "10"]
    pacing_speed.main([*small, "--out", str(tmp_path / "pacing")])
    torch.set_num_threads(threads)
    assert {path.name for path in tmp_path.iterdir()} == {f"pacing.{e}" for e in ("md", "json", "svg", "weights.svg")}
    result = json.loads((tmp_path / "pacing.json").read_text())
    assert [race["samples"] for race in result["races"]] == [30, 30, 180]
    for race in result["races"]:
        for name, wins in race["wins"].items():
            assert wins == (race["gap"][name] >= 0)
    assert len(result["rounds"]) == 6
    assert result["speed"]["xi_megabytes"] > 0
    ours = result["trace"]["ours"]
    assert ours == sorted(ours, reverse=True)
    for line in result["weights"]["maw"].values():
        assert line == sorted(line)
    page = (tmp_path / "pacing.md").read_text()
    assert page in capsys.readouterr().out
    assert "pacing.weights.svg" in page
    for name in ("pacing.svg", "pacing.weights.svg"):
        ElementTree.parse(tmp_path / name)
