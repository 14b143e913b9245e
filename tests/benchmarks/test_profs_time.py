"""The timing of PROFS runs, and writes its page and its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import profs_time

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "profs-time.md"


def test_the_committed_numbers_give_the_committed_page() -> None:
    result = json.loads(PAGE.with_suffix(".json").read_text())
    assert profs_time.report(result, "python -m benchmarks.profs_time --repeats 6") == PAGE.read_text()


def test_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    files = {name: tmp_path / f"out.{name}" for name in ("json", "md")}
    sizes = ["--classes", "40", "--dim", "8", "--batch", "20", "--repeats", "1", "--images", "4", "2"]
    network = ["--backbone", "resnet18", "--image-size", "32"]
    profs_time.main([*sizes, *network, "--json", str(files["json"]), "--markdown", str(files["md"])])
    torch.set_num_threads(threads)
    result = json.loads(files["json"].read_text())
    assert min(result["mining"].values()) > 0
    assert [row["images"] for row in result["steps"]] == [2, 4]
    assert all(0 < row["term"] < row["step"] for row in result["steps"])
    page = files["md"].read_text()
    assert page in capsys.readouterr().out
    assert profs_time.ONE_SEED in page
    assert "--classes 40" in page
