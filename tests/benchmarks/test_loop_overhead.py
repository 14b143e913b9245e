from pathlib import Path

import pytest

from benchmarks import loop_overhead


def test_page_has_a_row_per_case_and_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_overhead, "CASES", {"vectors": ("features", "supcon", 6)})
    page = tmp_path / "loop.md"
    loop_overhead.main(["--rounds", "1", "--markdown", str(page)])
    assert "| vectors |" in page.read_text()
    assert "--rounds 1 --threads 1" in page.read_text()


def test_both_loops_reach_the_same_weights_with_a_constant_rate(tmp_path: Path) -> None:
    """The schedule is the only difference between the loops, so it is switched off."""
    source = loop_overhead.vectors(tmp_path, samples=400, classes=10, width=512)
    weights = []
    for run, name in ((loop_overhead.time_bare_loop, "bare"), (loop_overhead.time_trainer, "trainer")):
        settings = ("schedule.name=constant", "schedule.warm_up=0")
        trainer = loop_overhead.make_trainer("features", source, "supcon", 6, tmp_path / name, *settings)
        run(trainer)
        weights.append(trainer.state.embedder.head.linear.weight.detach().clone())
    assert weights[0].equal(weights[1])
