"""Run the code cells of every notebook in docs/notebooks, in order and in one namespace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_cells_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    notebook = json.loads(path.read_bytes())
    assert notebook["nbformat"] == 4
    namespace: dict[str, Any] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "clear the outputs before committing"
            exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), namespace)
    results = namespace["results"]
    assert results["test"]["map@r"] > results["untrained"]["map@r"]
