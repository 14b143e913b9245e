from pathlib import Path

import numpy as np

from benchmarks import search


def test_the_page_has_both_kinds_and_names_its_command(tmp_path: Path) -> None:
    page = tmp_path / "search.md"
    sizes = ["--exact", "3000", "--hnsw", "600", "--dim", "8", "--queries", "1", "5", "--repeats", "1"]
    search.main([*sizes, "--markdown", str(page)])
    text = page.read_text()
    for row in ("| exact | 3,000 | 1 |", "| exact | 3,000 | 5 |", "| HNSW | 600 | 1 |", "| HNSW | 600 | 5 |"):
        assert row in text
    assert " ".join(sizes) in text


def test_every_call_gets_every_batch_in_turn() -> None:
    got: dict[str, list[float]] = {"one": [], "other": []}
    batches = [np.full((1, 2), number, np.float32) for number in range(3)]
    calls = {name: (lambda batch, name=name: got[name].append(float(batch[0, 0]))) for name in got}
    assert set(search.cpu_ms(calls, batches, repeats=2)) == {"one", "other"}
    assert sorted(got["one"]) == sorted(got["other"]) == [0, 1, 2]
