"""Runs that are killed, or find damage, no room or no rights, end with the weights of an undisturbed one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nearfar.errors import NearfarError
from nearfar.files import atomic
from nearfar.runs import CHECKPOINT, PREVIOUS
from nearfar.training import train
from nearfar.training.checkpoint import KEY, load_state, save_state
from tests.harness import faults


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Open to all, which pytest's own are not: the process that may not write still has to read."""
    with tempfile.TemporaryDirectory(prefix="nearfar-faults-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def source(folder: Path) -> str:
    return faults.vectors(folder)


@pytest.mark.parametrize("recipe", ["proxy-isa", "margin", "bspml", "m-profs-hncm"])
def test_every_fault_leaves_the_same_weights(recipe: str, source: str, folder: Path) -> None:
    found = faults.try_recipe(recipe, folder, source, kills=4, rooms=1, seed=0)
    assert found.wrong == []
    assert found.counts["killed while a file was being written"] + found.counts["killed at another time"] == 4
    assert found.counts["checkpoint changed"] == found.counts["checkpoint cut"] == found.counts["full disk"] == 1
    assert found.counts["no write permission"] == 2


def test_a_difference_is_seen(source: str, tmp_path: Path) -> None:
    """The comparison that the faults rely on can fail."""
    config = faults.configured("triplet", source)
    for name in ("one", "two"):
        train(config, tmp_path / name, progress=False, say=lambda _: None)
    assert faults.difference(tmp_path / "one", tmp_path / "two") == ""
    (tmp_path / "two" / ".x.1.part").touch()
    assert "was not removed" in faults.difference(tmp_path / "one", tmp_path / "two")
    other = faults.configured("contrastive", source)
    train(other, tmp_path / "other", progress=False, say=lambda _: None)
    (tmp_path / "other" / "config.yaml").write_bytes((tmp_path / "one" / "config.yaml").read_bytes())
    assert "differ" in faults.difference(tmp_path / "one", tmp_path / "other")


def test_a_damaged_checkpoint_is_told_and_the_good_one_kept(source: str, tmp_path: Path) -> None:
    config, said = faults.configured("proxy-anchor", source), list[str]()
    train(config, tmp_path, progress=False, say=said.append, stop_after=5)
    (tmp_path / CHECKPOINT).write_bytes(b"nothing")
    good = (tmp_path / PREVIOUS).read_bytes()
    train(config, tmp_path, resume=True, progress=False, say=said.append, stop_after=4)
    assert any(line.startswith("warning: ") and CHECKPOINT.name in line for line in said)
    assert "resuming at step 3 of 9" in said[-1]
    assert (tmp_path / PREVIOUS).read_bytes() == good  # until a whole checkpoint is beside it
    for name in (CHECKPOINT, PREVIOUS):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(NearfarError, match=rf"{CHECKPOINT.name}.*remove it"):
        train(config, tmp_path, resume=True, progress=False, say=said.append)


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, {"weights": torch.arange(6.0), "step": 3})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(NearfarError):
            load_state(path)


def test_the_same_state_is_the_same_bytes(tmp_path: Path) -> None:
    for name in "abcd":
        save_state(tmp_path / name, {"weights": torch.arange(6.0), "none": torch.zeros(0, 3), "step": 3})
    assert len({(tmp_path / name).read_bytes() for name in "abcd"}) == 1
    assert load_state(tmp_path / "a")["none"].shape == (0, 3)


def test_a_state_without_a_checksum_is_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"/w": torch.ones(2)}, tmp_path / "old", metadata={KEY: '{"dict": [["w", {"tensor": "/w"}]]}'})
    assert torch.equal(load_state(tmp_path / "old")["w"], torch.ones(2))


def test_a_file_in_the_way_of_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NearfarError, match="cannot be written"), atomic(tmp_path / "file" / "x") as draft:
        draft.touch()
