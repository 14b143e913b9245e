"""The benchmark runs both loops on a small folder of images, and its report has the right times and ratio."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pytorch_metric_learning", reason="pytorch-metric-learning is an extra")

from benchmarks.fine_tuning import NEARFAR, USUAL, Clock, main, make_report
from nearfar.config.merge import resolve
from nearfar.errors import NearfarError
from nearfar.models import find_weights
from nearfar.models.backbones.efficientnet_lite import EFFICIENTNET_LITE0_WEIGHTS


def test_both_loops_run_on_a_small_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        find_weights(EFFICIENTNET_LITE0_WEIGHTS)
    except NearfarError as error:
        pytest.skip(f"the pretrained weights are an extra: {error}")
    rng = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / "images" / f"kind {label}").mkdir(parents=True)
        for i in range(4):
            pixels = (rng.integers(0, 200, 3) + rng.integers(0, 40, (40, 40, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / f"kind {label}" / f"{i}.png")
    small = ["--set", "images.crop=32", "--set", "epochs=2", "--set", "batches.size=4"]
    page = tmp_path / "page.md"
    main([str(tmp_path / "images"), "--goal", "101", "--epochs", "1", *small, "--markdown", str(page)])
    text = page.read_text()
    assert f"| {NEARFAR} | not in " in text
    assert f"| {USUAL} | not in " in text
    assert "efficientnet-lite0 at 32 pixels" in text
    printed = capsys.readouterr().out
    assert printed.count(f"{NEARFAR}: ") == 2  # one line after each epoch
    assert printed.count(f"{USUAL}: ") == 1
    main([str(tmp_path / "images"), "--goal", "0", "--epochs", "3", *small])
    printed = capsys.readouterr().out
    assert (printed.count(f"{NEARFAR}: "), printed.count(f"{USUAL}: ")) == (1, 1)  # both end at the goal


def test_the_ratio_compares_the_times_to_the_goal() -> None:
    config = resolve("files", recipe="proxy-anchor")
    points = {NEARFAR: [(10.0, 0.5), (20.0, 0.62)], USUAL: [(40.0, 0.5), (80.0, 0.7)]}
    assert "The usual loop takes 4.0 times as long." in make_report(points, 0.62, config)
    points[USUAL][1] = (80.0, 0.6)
    assert "The usual loop takes at least 4.0 times as long." in make_report(points, 0.62, config)
    assert "nearfar did not reach the goal." in make_report(points, 0.9, config)


def test_a_pause_does_not_count() -> None:
    clock = Clock()
    seconds, result = clock.pause(lambda: float(sum(i * i for i in range(2_000_000))))
    assert result > 0
    assert clock.seconds() - seconds < 0.05
