"""Locks of directories: exclusive, released by death, waited for, and named in messages."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from nearfar.directory_lock import lock_directory
from nearfar.errors import NearfarError
from processes import exit_codes, start


def lock(folder: Path, **options: Any) -> AbstractContextManager[None]:
    return lock_directory(folder, "test", state="is used", remedy="go away", **options)


def hold(folder: Path, seconds: float) -> None:
    with lock(folder):
        (folder / "held").touch()
        time.sleep(seconds)


def start_holder(folder: Path, seconds: float = 60) -> BaseProcess:
    process = start(hold, folder, seconds)
    while not (folder / "held").exists():
        assert process.is_alive()
        time.sleep(0.01)
    return process


def test_message_names_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/lib/nearfar/__main__.py", "serve", "run", "--token", "a-secret"])
    with lock(tmp_path), pytest.raises(NearfarError) as caught, lock(tmp_path):
        pass
    owner = f"process {os.getpid()} (nearfar serve, since 2"
    assert str(caught.value).startswith(f"{tmp_path}: is used by {owner}")
    assert str(caught.value).endswith("): go away")


def test_names_are_independent_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with lock(folder), lock_directory(folder, "other", state="", remedy=""):
        assert len(list(folder.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []
    with lock(folder):
        (folder / "file").touch()
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_killed_owner_blocks_nobody(tmp_path: Path) -> None:
    process = start_holder(tmp_path)
    with pytest.raises(NearfarError, match="is used by process"), lock(tmp_path):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / ".test.lock").exists()
    with lock(tmp_path):
        pass
    assert not (tmp_path / ".test.lock").exists()


def test_children_of_a_dead_owner_do_not_keep_the_lock(tmp_path: Path) -> None:
    def hold_with_child() -> None:
        with lock(tmp_path):
            if os.fork() == 0:
                time.sleep(3)
                os._exit(0)
            (tmp_path / "held").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    process = start(hold_with_child)
    process.join()
    assert (tmp_path / "held").exists()
    with lock(tmp_path):
        pass


def test_waiting_says_for_whom_and_then_goes_on(tmp_path: Path) -> None:
    process = start_holder(tmp_path, 0.3)
    said: list[str] = []
    with lock(tmp_path, wait=said.append):
        assert not process.is_alive() or not (tmp_path / ".test.lock").read_text().count(str(process.pid))
    (message,) = said
    assert f"is used by process {process.pid} (" in message
    assert message.endswith("): waiting until it ends")


def count_up(folder: Path, times: int) -> None:
    for _ in range(times):
        with lock(folder / "sub", wait=lambda _: None):
            number = folder / "number"
            number.write_text(str(int(number.read_text()) + 1))


def test_processes_and_threads_take_turns(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    processes = [start(count_up, tmp_path, 200) for _ in range(4)]
    threads = [threading.Thread(target=count_up, args=(tmp_path, 50)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert exit_codes(processes) == [0] * 4
    for thread in threads:
        thread.join()
    assert (tmp_path / "number").read_text() == "900"
    assert not list(tmp_path.rglob("*.lock"))


def test_directory_without_permission_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NearfarError, match="cannot be written"), lock(tmp_path / "file" / "sub"):
        pass
