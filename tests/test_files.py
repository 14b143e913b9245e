"""Temporary files next to the file that is written: removed on errors, and after their process was killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from nearfar import files
from nearfar.errors import NearfarError
from nearfar.files import atomic, check_not_read, is_draft, remove_drafts
from processes import start


def write_slowly(path: Path) -> None:
    with atomic(path) as draft:
        draft.write_text("half")
        time.sleep(60)


def test_drafts_of_killed_processes_are_removed_and_others_kept(tmp_path: Path) -> None:
    processes = [start(write_slowly, tmp_path / name) for name in ("killed.csv", "alive.csv")]
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.01)
    assert all(is_draft(path) for path in tmp_path.iterdir())
    killed, alive = processes
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    remove_drafts(tmp_path, "alive.csv")
    assert len(list(tmp_path.iterdir())) == 2
    remove_drafts(tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".alive.csv.")
    alive.kill()
    alive.join()
    remove_drafts(tmp_path)
    assert not list(tmp_path.iterdir())


def test_drafts_of_other_machines_are_kept_for_a_day(tmp_path: Path) -> None:
    draft = tmp_path / ".model.safetensors.00000000.1.part"
    draft.touch()
    remove_drafts(tmp_path)
    assert draft.exists()
    os.utime(draft, times=(0, time.time() - 1.1 * files.DAY_SECONDS))
    remove_drafts(tmp_path)
    assert not draft.exists()


def test_check_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.link(tmp_path / "a", tmp_path / "b")
    check_not_read(tmp_path / "new", [tmp_path / "a", tmp_path / "gone"], remedy="stop")
    with pytest.raises(NearfarError, match="b: this command reads this file and would overwrite it: stop"):
        check_not_read(tmp_path / "b", [tmp_path / "a"], remedy="stop")
