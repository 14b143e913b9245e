import json
from pathlib import Path

import pytest

from benchmarks import speed
from benchmarks.timing import best_ms, peak_bytes
from nearfar.losses import names


def test_a_small_run_writes_rows_and_page(tmp_path: Path) -> None:
    target = tmp_path / "out" / "speed.json"
    page = tmp_path / "speed.md"
    speed.main(f"--batch 20 --dim 8 --only supcon pair-margin --repeats 2 --json {target} --markdown {page}".split())
    rows = json.loads(target.read_text())
    assert [r["loss"] for r in rows] == ["pair-margin", "supcon"]
    for row in rows:
        assert {"loss", "B", "d", "ms", "floor_ratio", "peer_ratio", "peak_mb"} <= set(row)
        assert row["ms"] > 0
        assert row["floor_ratio"] > 0
        assert row["peak_mb"] > 0
    assert rows[0]["peer_ratio"] is None
    assert rows[1]["peer_ratio"] > 0
    assert rows[1]["peer_same_value"] is True
    assert "--batch 20 --dim 8" in page.read_text()


def test_proxies_and_memory_are_measured_at_every_size(tmp_path: Path) -> None:
    target, page = tmp_path / "speed.json", tmp_path / "speed.md"
    sizes = "--batch 8 32 --dim 8 --classes 5 7 --memory 16 --repeats 2"
    speed.main(f"{sizes} --only arcface cross-batch-memory --json {target} --markdown {page}".split())
    rows = json.loads(target.read_text())
    assert [(r["B"], r["C"]) for r in rows if r["loss"] == "arcface"] == [(8, 5), (32, 5), (8, 7), (32, 7)]
    remembered = [r for r in rows if r["M"] is not None]
    assert {r["loss"] for r in remembered} == {"ContrastiveLoss", "MultiSimilarityLoss", "SupConLoss"}
    assert {r["B"] for r in remembered} == {8}  # 32 samples do not fit a memory of 16
    assert all(r["peer_same_value"] for r in remembered)
    text = page.read_text()
    assert "geometric mean of 7 measurements in all tables" in text
    slower = [r for r in rows if r["peer_ratio"] is not None and r["peer_ratio"] < 1]
    assert f"pytorch-metric-learning is faster in {len(slower)} of them" in text
    assert "| proxy losses | 4 |" in text
    assert "| cross-batch memory | 3 |" in text
    assert "| all with B = 8 | 5 |" in text


def test_a_resumed_run_makes_only_the_missing_measurements(tmp_path: Path) -> None:
    target, page = tmp_path / "speed.json", tmp_path / "speed.md"
    options = f"--dim 8 --classes 5 --memory 16 --repeats 2 --resume --json {target} --markdown {page} --only".split()
    speed.main(["--batch", "16", *options, "supcon", "arcface", "cross-batch-memory"])
    first = json.loads(target.read_text())
    assert len(first) == 5
    speed.main(["--batch", "8", "16", *options, "supcon", "arcface", "cross-batch-memory"])
    rows = json.loads(target.read_text())
    assert rows[:5] == first
    assert {(r["loss"], r["B"]) for r in rows[5:]} == {(r["loss"], 8) for r in first}
    assert "| loss | B=8 ms | floor | PML | floats | B=16 ms |" in page.read_text()
    with pytest.raises(SystemExit):
        speed.main(["--resume"])


def test_every_loss_of_the_registry_is_measured() -> None:
    measured = {label.split()[0] for label in speed.LOSSES}
    assert {n for n in names() if n in measured} == measured
    from nearfar.losses import PairLoss, loss_class

    assert {n for n in names() if issubclass(loss_class(n), PairLoss)} - {"dro"} <= measured


def test_an_unknown_loss_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        speed.main(["--only", "nonsense"])
    assert "Known:" in capsys.readouterr().err


def test_best_of_turns_and_peak() -> None:
    import torch

    calls: list[str] = []
    best = best_ms({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3)
    assert calls == ["a", "b"] * 4
    assert set(best) == {"a", "b"}
    x = torch.ones(256, 256)
    held = peak_bytes(lambda: (x + 1) + (x + 2))
    assert 3 * x.nbytes == pytest.approx(held, rel=0.05)
