"""The timing of DRO runs, and writes its page, its numbers and a figure that is well-formed and complete."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import dro_time
from nearfar.suites.line_plot import Style, line_plot, svg


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


def test_labels_do_not_overlap() -> None:
    lines = {f"line {n}": [1.0, 1.0 + n / 1000] for n in range(8)}
    panel = line_plot(
        [1, 2], lines, dict.fromkeys(lines, Style("blue")), title="a < b", x_label="x", y_label="y", log_y=True
    )
    root = ElementTree.fromstring(svg([panel]))
    places = sorted(float(e.get("y", "")) for e in root.iter() if (e.text or "").startswith("line "))
    assert len(places) == 8
    assert min(b - a for a, b in pairwise(places)) > 14
