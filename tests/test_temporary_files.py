"""Temporary files: deleted at exit, after SIGTERM, and by a later process after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nearfar.temporary_files import create_temporary
from processes import start


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def create_and_sleep() -> None:
    create_temporary(".tar").write_bytes(b"unpacked")
    time.sleep(60)


def test_files_of_killed_processes_are_removed_and_others_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.tar").touch()
    killed, alive = start(create_and_sleep), start(create_and_sleep)
    while sum(path.stat().st_size for path in tmp_path.iterdir()) < 16:
        time.sleep(0.01)
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    for path in tmp_path.iterdir():
        os.utime(path, times=(0, time.time() - 600))
    create_temporary(".tar").unlink()
    assert len(list(tmp_path.glob("nearfar-*.tar"))) == 1
    alive.kill()
    alive.join()
    create_temporary(".tar").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.tar"]


def test_sigterm_removes_files_and_locks(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
import nearfar.cli.edge
from nearfar.directory_lock import lock_directory
from nearfar.temporary_files import create_temporary
nearfar.cli.edge._end_on_sigterm()
with lock_directory(Path(sys.argv[1]), "test", state="", remedy=""):
    create_temporary(".tar")
    print("ready", flush=True)
    time.sleep(60)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 2
        process.terminate()
        assert process.wait(30) == 143
    assert not list(tmp_path.iterdir())
