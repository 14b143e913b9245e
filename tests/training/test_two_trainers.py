"""Two trainings into one directory: the second is refused, and a killed one blocks nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from nearfar.errors import NearfarError
from nearfar.training import train
from processes import start
from training_cases import configured


def test_second_training_is_refused_until_the_first_is_dead(vectors: str, tmp_path: Path) -> None:
    endless = configured("features", vectors, "supcon", "steps=1000000", "save_every=0")
    out = tmp_path / "run"
    process = start(lambda: train(endless, out, say=lambda _: None, progress=False))
    assert process.pid is not None
    while not (out / "checkpoint" / "state.safetensors").exists():
        assert process.is_alive()
        time.sleep(0.02)
    for resume in (False, True):
        with pytest.raises(
            NearfarError, match=rf"is used by process {process.pid} \(.*, since 20.*: wait until it ends"
        ):
            train(endless, out, resume=resume, say=lambda _: None)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    train(endless, out, resume=True, say=lambda _: None, progress=False, stop_after=1)


def test_finished_run_leaves_no_lock(vectors: str, tmp_path: Path) -> None:
    train(configured("features", vectors, "supcon"), tmp_path / "run", say=lambda _: None)
    assert not list((tmp_path / "run").glob(".*"))


def test_refused_training_leaves_no_directory(vectors: str, tmp_path: Path) -> None:
    config = configured("features", vectors, "supcon", "device=nonsense")
    with pytest.raises(NearfarError, match="device=nonsense"):
        train(config, tmp_path / "some" / "run", say=lambda _: None)
    assert not (tmp_path / "some").exists()
