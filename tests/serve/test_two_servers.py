"""Two processes decide on one run: no accepted decision is lost, and a second server is refused."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from nearfar.data import Manifest
from nearfar.errors import NearfarError
from nearfar.serve.collection import Collection
from nearfar.serve.decision_file import DecisionFile
from nearfar.serve.server import serve
from ports import free_port
from processes import exit_codes, start


def until_answered(url: str) -> None:
    for _ in range(600):
        try:
            httpx.get(url)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")


def data() -> Manifest:
    paths = tuple(f"{i}.png" for i in range(240))
    return Manifest(labels=[0] * 240, classes=("a", "b"), split=["train"] * 240, paths=paths)


def decide(path: Path, rows: range) -> None:
    decisions = DecisionFile(path, data())
    for row in rows:
        decisions.decide(row, "relabel", 1)


def test_decisions_of_several_processes_are_all_saved(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    processes = [start(decide, path, range(first, 240, 4)) for first in range(4)]
    assert exit_codes(processes) == [0] * 4
    assert sorted(DecisionFile(path, data()).all()) == list(range(240))
    assert [each.name for each in tmp_path.iterdir()] == ["decisions.csv"]


def test_second_server_of_a_run_is_refused(run_path: Path, collection: Collection) -> None:
    port = free_port()
    first = start(lambda: serve(run_path, port=port))
    try:
        until_answered(f"http://127.0.0.1:{port}/api/info")
        with pytest.raises(NearfarError, match=rf"is served by process {first.pid} \(.*, since 20.*: stop it"):
            serve(run_path, port=free_port())
    finally:
        first.terminate()
        first.join(30)
    second = start(lambda: serve(run_path, port=port))
    until_answered(f"http://127.0.0.1:{port}/api/info")
    second.terminate()
    second.join(30)
