"""`nearfar advise` from the command line, on vectors, drawings and images."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from data import builders
from nearfar.advise import successive_halving, trial
from nearfar.cli import main
from nearfar.config.defaults import OURS


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("features", "pixels"):
        monkeypatch.setitem(OURS[kind], "steps", 10)
    monkeypatch.setattr(successive_halving, "MAX_SPLITS", (1, 2))


def advise(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["advise", *words])
    return found.exit_code, found.output


@pytest.mark.parametrize("data", ["many", "drawings"])
def test_output_ends_with_a_train_command(data: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, out = str(request.getfixturevalue(data)), str(tmp_path / "out")
    words = (source, "--recipes", "supcon, proxy-anchor loss.alpha=16", "--minutes", "100", "--out", out)
    code, text = advise(*words)
    assert code == 0, text
    assert "round 1 of 1: 2 recipes, 10 steps each" in text
    assert "over 2 class splits, 10 steps" in text
    last = text.strip().splitlines()[-1]
    ends = ("--recipe supcon", "--recipe proxy-anchor --set loss.alpha=16")
    assert last in [f"nearfar train {source} {end}" for end in ends]
    code, resumed = advise(*words)
    assert code == 0
    assert "split 1," not in resumed
    assert resumed.strip().splitlines()[-1] == last


def test_errors_are_one_line(many: str, tmp_path: Path) -> None:
    code, text = advise(many, "--minutes", "-1", "--out", str(tmp_path))
    assert (code, text) == (1, "Error: --minutes must be a number above 0, got -1\n")
    code, text = advise(many, "--recipes", "supcn, mpa", "--out", str(tmp_path))
    assert (code, text.count("\n")) == (1, 1)
    assert "did you mean 'supcon'" in text


@pytest.fixture
def birds(tmp_path: Path) -> str:
    for c in range(8):
        for i in range(4):
            builders.write(tmp_path / "birds" / f"kind {c}" / f"{i}.jpg", builders.jpeg(10 * c + i, (40, 36)))
    return str(tmp_path / "birds")


def test_images_are_embedded_once(birds: str, tmp_path: Path) -> None:
    vectors = tmp_path / "out" / "vectors.npz"
    words = (birds, "--recipes", "supcon, contrastive", "--minutes", "100", "--out", str(vectors.parent))
    code, text = advise(*words)
    assert code == 0, text
    assert (
        "2 recipes on 16 samples (features of a frozen EfficientNet-Lite0) of 4 classes "
        "(training split: 16 samples of 4 classes)" in text
    )
    made = vectors.stat().st_mtime_ns
    code, resumed = advise(*words)
    assert code == 0, resumed
    assert vectors.stat().st_mtime_ns == made
    assert resumed.strip().splitlines()[-1] == text.strip().splitlines()[-1]


def test_images_with_the_whole_network(birds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "IMAGE_SIZE", 32)
    monkeypatch.setitem(OURS["files"], "epochs", 2)
    words = (birds, "--recipes", "supcon, contrastive", "--minutes", "100", "--out", str(tmp_path / "out"), "--whole")
    code, text = advise(*words)
    assert code == 0, text
    assert "2 recipes on 16 samples (files) of 4 classes" in text
    assert "over 2 class splits, 2 steps" in text
    assert not (tmp_path / "out" / "vectors.npz").exists()


def test_too_few_minutes_are_refused_before_images_are_embedded(
    many: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = advise(many, "--minutes", "0.001", "--out", str(tmp_path / "vectors"))
    assert code == 1
    assert "--minutes 0.001 is too short to compare 8 recipes: use --minutes " in text
    assert not (tmp_path / "vectors" / "trials.jsonl").exists()
    images = tmp_path / "images"
    for label in range(8):
        (images / str(label)).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (30 * label, 80 * number, 0)).save(images / str(label) / f"{number}.png")
    monkeypatch.setattr("nearfar.advise.data.embed_pretrained", None)  # not reached
    code, text = advise(str(images), "--minutes", "0.001", "--out", str(tmp_path / "out"))
    assert code == 1
    assert "--minutes 0.001 is too short" in text
