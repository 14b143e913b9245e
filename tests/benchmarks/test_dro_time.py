"""The timing of DRO runs, and writes its page, its numbers and a figure that is well-formed and complete."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import dro_time


def test_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    files = {name: tmp_path / f"out.{name}" for name in ("json", "svg", "md")}
    sizes = ["--batch", "20", "10", "--dim", "8", "--set-batch", "20", "--set-dim", "8", "--repeats", "1"]
    dro_time.main([*sizes, "--json", str(files["json"]), "--figure", str(files["svg"]), "--markdown", str(files["md"])])
    torch.set_num_threads(threads)
    result = json.loads(files["json"].read_text())
    assert result["batches"] == [10, 20]
    curves = {*dro_time.DRO, *dro_time.OTHERS, dro_time.MEAN}
    assert set(result["times"]) == curves
    assert all(len(times) == 2 and min(times) > 0 for times in result["times"].values())
    page = files["md"].read_text()
    assert page in capsys.readouterr().out
    assert "out.svg" in page
    texts = {element.text for element in ElementTree.parse(files["svg"]).iter() if element.tag.endswith("text")}
    assert curves <= texts
