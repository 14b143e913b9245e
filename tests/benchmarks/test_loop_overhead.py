from pathlib import Path

import pytest

from benchmarks import loop_overhead


def test_both_sides_do_the_same_steps_and_the_page_names_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_overhead, "CASES", {"vectors": ("features", "supcon", 6)})
    page = tmp_path / "loop.md"
    loop_overhead.main(["--rounds", "1", "--markdown", str(page)])
    assert "| vectors |" in page.read_text()
    assert "--rounds 1 --threads 1" in page.read_text()


def test_the_bare_loop_reaches_the_weights_of_the_loop_with_a_constant_rate(tmp_path: Path) -> None:
    """Otherwise the two would not be comparable; the loop's schedule is the only difference, so it is switched off."""
    source = loop_overhead.vectors(tmp_path, samples=400, classes=10, width=512)
    sides = []
    for run, name in ((loop_overhead.bare, "bare"), (loop_overhead.ours, "ours")):
        parts = loop_overhead.training("features", source, "supcon", 6, tmp_path / name)
        parts.config = type(parts.config)(
            **{**vars(parts.config), "schedule": type(parts.config.schedule)(name="constant", warm_up=0.0)}
        )
        run(parts)
        sides.append(parts.embedder.head.linear.weight.detach().clone())
    assert sides[0].equal(sides[1])
