"""A checkpoint is resumed only with the settings, the data and the format that it was saved with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.config.merge import resolve
from nearfar.data import open_data
from nearfar.data.cache import cache_images
from nearfar.errors import NearfarError
from nearfar.runs import CHECKPOINT, PREVIOUS, Run
from nearfar.training import Config, train
from nearfar.training.checkpoint import load_state, save_state
from tests.harness import faults


def silent(_: str) -> None:
    """Print nothing."""


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Config, Path]:
    """A run that was stopped after step 5, with one checkpoint."""
    config, out = faults.configured("triplet", faults.vectors(tmp_path)), tmp_path / "run"
    train(config, out, progress=False, say=silent, stop_after=5)
    (out / PREVIOUS).unlink()
    return config, out


def resume(out: Path) -> None:
    train(Run(out).config, out, resume=True, progress=False, say=silent)


def test_an_edited_configuration_is_refused_by_name(stopped: tuple[Config, Path]) -> None:
    _, out = stopped
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(text.replace("weight_decay: 0.01", "weight_decay: 0.5", 1))
    with pytest.raises(NearfarError, match=r"optimizer.weight_decay=0.01, but config.yaml has 0.5"):
        resume(out)
    (out / "config.yaml").write_text(text.replace("log_every: 2", "log_every: 3"))  # does not change the weights
    resume(out)


def test_a_checkpoint_from_before_a_setting_existed_is_resumed(stopped: tuple[Config, Path]) -> None:
    """The missing setting had the effect of its default, so only another value is refused."""
    _, out = stopped
    state = load_state(out / CHECKPOINT)
    del state["settings"]["schedule.warm_up_epochs"]
    save_state(out / CHECKPOINT, state)
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(text.replace("warm_up_epochs: 0", "warm_up_epochs: 1"))
    with pytest.raises(NearfarError, match=r"schedule.warm_up_epochs=0, but config.yaml has 1"):
        resume(out)
    (out / "config.yaml").write_text(text)
    resume(out)


def test_the_checkpoint_of_another_run_is_refused(stopped: tuple[Config, Path], tmp_path: Path) -> None:
    config, out = stopped
    other = replace(config, seed=7)
    train(other, tmp_path / "other", progress=False, say=silent, stop_after=3)
    (out / CHECKPOINT).write_bytes((tmp_path / "other" / CHECKPOINT).read_bytes())
    with pytest.raises(NearfarError, match=r"was saved with seed=7, but config.yaml has 0"):
        resume(out)


def test_a_changed_setting_is_reported_once(stopped: tuple[Config, Path]) -> None:
    """Both checkpoints differ from config.yaml, so there is no checkpoint to continue from, and no warning."""
    _, out = stopped
    (out / PREVIOUS).write_bytes((out / CHECKPOINT).read_bytes())
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(text.replace("weight_decay: 0.01", "weight_decay: 0.5", 1))
    said: list[str] = []
    with pytest.raises(NearfarError, match=r"state.safetensors: .*weight_decay=0.01, but config.yaml has 0.5"):
        train(Run(out).config, out, resume=True, progress=False, say=said.append)
    assert not any("previous checkpoint" in line for line in said)


def test_a_foreign_checkpoint_is_passed_over_if_the_previous_one_is_good(
    stopped: tuple[Config, Path], tmp_path: Path
) -> None:
    config, out = stopped
    (out / PREVIOUS).write_bytes((out / CHECKPOINT).read_bytes())
    train(replace(config, seed=7), tmp_path / "other", progress=False, say=silent, stop_after=3)
    (out / CHECKPOINT).write_bytes((tmp_path / "other" / CHECKPOINT).read_bytes())
    said: list[str] = []
    train(Run(out).config, out, resume=True, progress=False, say=said.append)
    assert any("seed=7, but config.yaml has 0" in line and "previous checkpoint" in line for line in said)
    assert (out / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "has format 99, but this version of nearfar reads format 1"),
        ({"format": None}, "has format None"),
        ({"teleport": 1}, "has the unknown part 'teleport'"),
    ],
)
def test_other_formats_are_refused(change: dict[str, object], message: str, stopped: tuple[Config, Path]) -> None:
    _, out = stopped
    save_state(out / CHECKPOINT, load_state(out / CHECKPOINT) | change)
    with pytest.raises(NearfarError, match=message):
        resume(out)


def test_a_checkpoint_without_a_format_or_a_part_is_refused(stopped: tuple[Config, Path]) -> None:
    _, out = stopped
    state = load_state(out / CHECKPOINT)
    save_state(out / CHECKPOINT, {key: value for key, value in state.items() if key != "format"})
    with pytest.raises(NearfarError, match="has no format version"):
        resume(out)
    save_state(out / CHECKPOINT, {key: value for key, value in state.items() if key != "random"})
    with pytest.raises(NearfarError, match="has no part 'random'"):
        resume(out)


@pytest.mark.parametrize("cached", [False, True])
def test_replaced_images_are_refused(cached: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / "photos" / str(label)).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / str(label) / f"{number}.png")
    settings = ["model.backbone=small", "model.pretrained=false", "images.crop=16", "model.dim=8", "batches.size=8"]
    settings += ["steps=6", "save_every=0", "data.workers=0", f"data.source={tmp_path / 'photos'}", "untrained=false"]
    if cached:
        settings.append(f"data.cache={tmp_path / 'cache'}")
    config, out = resolve("files", recipe="triplet", settings=settings), tmp_path / "run"
    train(config, out, progress=False, say=silent, stop_after=3)
    (tmp_path / "photos" / "0" / "0.png").touch()  # another time, the same content
    train(config, out, resume=True, progress=False, say=silent, stop_after=4)
    Image.new("RGB", (20, 20)).save(tmp_path / "photos" / "0" / "0.png")
    with pytest.raises(NearfarError, match="was saved with different images"):
        train(config, out, resume=True, progress=False, say=silent)


def test_a_zeroed_cache_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 20), (50 * number, 90, 200)).save(tmp_path / "photos" / name / f"{number}.png")
    manifest = open_data(tmp_path / "photos")
    cache_images(manifest, tmp_path / "cache", size=8)
    (file,) = (tmp_path / "cache").glob("*.npy")
    data = np.load(file)
    np.save(file, np.zeros_like(data))
    with pytest.raises(NearfarError, match=r"is damaged .*: delete it"):
        cache_images(manifest, tmp_path / "cache", size=8)
    np.save(file, data)
    assert torch.equal(
        torch.tensor(np.asarray(cache_images(manifest, tmp_path / "cache", size=8).pixels)), torch.tensor(data)
    )
