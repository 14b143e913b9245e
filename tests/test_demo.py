import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.config.defaults import OURS
from nearfar.data import Manifest, load_sketches, save_manifest
from nearfar.demo import _end_with_parent, run
from nearfar.errors import NearfarError
from nearfar.models import find_weights
from nearfar.models.backbones.efficientnet_lite import EFFICIENTNET_LITE0_WEIGHTS
from nearfar.runs import Run
from processes import FORK, start


def test_a_short_demo_learns_writes_its_page_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a tenth of the embedded drawings, whole classes."""
    data = load_sketches()
    source = str(tmp_path / "few.npz")
    save_manifest(data.subset(data.labels % 10 == 0).compact(), Path(source))
    scores = run(steps=60, source=source, out=tmp_path / "out")
    assert set(scores) == {"raw pixels", "untrained net", "supcon", "proxy-anchor"}
    assert scores["proxy-anchor"]["map@r"] > 1.3 * scores["untrained net"]["map@r"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    printed = capsys.readouterr().out
    assert "Recall@1" in printed
    assert "Searching with" in printed
    again = run(steps=60, source=source, out=tmp_path / "out")
    assert again["supcon"] == scores["supcon"]
    with pytest.raises(NearfarError, match=r"a demo with other settings \(60 steps on .*few\.npz\)"):
        run(steps=61, source=source, out=tmp_path / "out")


def test_the_demo_on_images_takes_the_defaults_of_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        find_weights(EFFICIENTNET_LITE0_WEIGHTS)
    except NearfarError as error:
        pytest.skip(f"the pretrained weights are an extra: {error}")
    rng = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / "images" / f"kind {label}").mkdir(parents=True)
        for i in range(3):
            pixels = (rng.integers(0, 200, 3) + rng.integers(0, 40, (40, 40, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / f"kind {label}" / f"{i}.png")
    monkeypatch.setitem(OURS["files"], "images", {"crop": 32})
    scores = run(steps=2, source=str(tmp_path / "images"), out=tmp_path / "out")
    assert set(scores) == {"before training", "proxy-anchor"}
    config = Run(tmp_path / "out" / "proxy-anchor").config
    assert (config.model.train_from, config.steps, config.model.init) == (None, 2, "pca")
    assert (config.images.train_crop, config.cache.activations) == (0.7, None)
    printed = capfd.readouterr()
    assert "plan: train efficientnet-lite0, all blocks, on images of 32 pixels" in printed.out + printed.err


def test_error_for_too_few_classes(tmp_path: Path) -> None:
    pixels = np.zeros((6, 8, 8), dtype=np.uint8)
    data = Manifest(labels=[0, 0, 1, 1, 2, 2], classes=("a", "b", "c"), split=["train"] * 6, pixels=pixels)
    save_manifest(data.split_by_class_order(), tmp_path / "three.npz")
    with pytest.raises(NearfarError, match="two for testing, got 1 and 2"):
        run(steps=1, source=str(tmp_path / "three.npz"), out=tmp_path / "out")


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    def work() -> None:
        _end_with_parent()
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    def start_worker() -> None:
        FORK.Process(target=work).start()
        time.sleep(60)

    parent = start(start_worker)
    while not (found := list(tmp_path.iterdir())):
        time.sleep(0.01)
    assert parent.pid is not None
    os.kill(parent.pid, signal.SIGKILL)
    parent.join()
    end = time.monotonic() + 10
    while _is_running(int(found[0].name)):
        assert time.monotonic() < end, "the worker survived its parent"
        time.sleep(0.02)


def _is_running(process: int) -> bool:
    try:
        # the process may stay as a zombie, because nobody waits for it
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
