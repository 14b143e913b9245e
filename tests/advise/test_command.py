"""`nearfar advise` from the command line: vectors, drawings, pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from data import builders
from nearfar.advise import halving, race
from nearfar.cli import main
from nearfar.config.merge import OURS


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("features", "pixels"):
        monkeypatch.setitem(OURS[kind], "steps", 10)
    monkeypatch.setattr(halving, "MOST_SPLITS", (1, 2))


def advise(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["advise", *words])
    return found.exit_code, found.output


@pytest.mark.parametrize("data", ["many", "drawings"])
def test_it_ends_in_a_command(data: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, out = str(request.getfixturevalue(data)), str(tmp_path / "out")
    words = (source, "--recipes", "supcon, proxy-anchor loss.alpha=16", "--minutes", "100", "--out", out)
    code, text = advise(*words)
    assert code == 0, text
    assert "round 1 of 1: 2 recipes, 10 steps each" in text
    assert "over 2 class splits, 10 steps" in text
    last = text.strip().splitlines()[-1]
    ends = ("--recipe supcon", "--recipe proxy-anchor --set loss.alpha=16")
    assert last in [f"nearfar train {source} {end}" for end in ends]
    code, again = advise(*words)
    assert code == 0
    assert "split 1," not in again
    assert again.strip().splitlines()[-1] == last


def test_mistakes_end_in_one_line(many: str, tmp_path: Path) -> None:
    code, text = advise(many, "--minutes", "-1", "--out", str(tmp_path))
    assert (code, text) == (1, "Error: --minutes must be above 0, got -1\n")
    code, text = advise(many, "--recipes", "supcn, mpa", "--out", str(tmp_path))
    assert (code, text.count("\n")) == (1, 1)
    assert "did you mean 'supcon'" in text


@pytest.fixture
def birds(tmp_path: Path) -> str:
    for c in range(8):
        for i in range(4):
            builders.write(tmp_path / "birds" / f"kind {c}" / f"{i}.jpg", builders.jpeg(10 * c + i, (40, 36)))
    return str(tmp_path / "birds")


def test_pictures_race_as_vectors_of_the_usual_backbone(birds: str, tmp_path: Path) -> None:
    vectors = tmp_path / "out" / "vectors.npz"
    words = (birds, "--recipes", "supcon, contrastive", "--minutes", "100", "--out", str(vectors.parent))
    code, text = advise(*words)
    assert code == 0, text
    assert "2 recipes on 16 features of a frozen EfficientNet-Lite0 of 4 classes, of 16 of 4 for training" in text
    made = vectors.stat().st_mtime_ns
    code, again = advise(*words)
    assert code == 0, again
    assert vectors.stat().st_mtime_ns == made
    assert again.strip().splitlines()[-1] == text.strip().splitlines()[-1]


def test_pictures_race_with_the_whole_network(birds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "SIDE", 32)
    monkeypatch.setitem(OURS["files"], "epochs", 2)
    words = (birds, "--recipes", "supcon, contrastive", "--minutes", "100", "--out", str(tmp_path / "out"), "--whole")
    code, text = advise(*words)
    assert code == 0, text
    assert "2 recipes on 16 files of 4 classes" in text
    assert "over 2 class splits, 2 steps" in text
    assert not (tmp_path / "out" / "vectors.npz").exists()
