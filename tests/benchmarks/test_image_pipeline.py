"""The benchmark of the image pipeline measures every part on a small folder of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.image_pipeline import best_cpu_ms, main
from nearfar.errors import NearfarError
from nearfar.models import find_weights
from nearfar.models.backbones.efficientnet_lite import EFFICIENTNET_LITE0_WEIGHTS


def test_all_parts_are_measured_and_scored(tmp_path: Path) -> None:
    try:
        find_weights(EFFICIENTNET_LITE0_WEIGHTS)
    except NearfarError as error:
        pytest.skip(f"the pretrained weights are an extra: {error}")
    rng = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / "images" / f"kind {label}").mkdir(parents=True)
        for i in range(2):
            pixels = (rng.integers(0, 200, 3) + rng.integers(0, 40, (40, 40, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / f"kind {label}" / f"{i}.png")
    page = tmp_path / "page.md"
    small = ["--backbones", "efficientnet-lite0", "--images", "2", "--rounds", "1", "--score"]
    main([str(tmp_path / "images"), *small, "--markdown", str(page)])
    text = page.read_text()
    for part in ("Pillow", "augmented view", "cache read", "step above the cache", "memory of all blocks", "recall@1"):
        assert f"| {part} | " in text


def test_the_best_round_counts_and_the_first_does_not() -> None:
    calls = []
    times = best_cpu_ms({"one": lambda: calls.append(1)}, images=4, rounds=2)
    assert len(calls) == 3
    assert 0 <= times["one"] < 10
