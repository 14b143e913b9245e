"""Reloading: a changed index is served without a failed request, and a broken one leaves the old one in place."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from nearfar.search import Encoder, Index
from nearfar.search.run_index import build_index, extend_index
from nearfar.serve.application import open_reloading_app
from nearfar.serve.collection import Collection
from nearfar.serve.metrics import RELOADS
from nearfar.serve.server import guard_app, run_in_background
from ports import free_port


@pytest.fixture
def copied_run(run_path: Path, collection: Collection, tmp_path: Path) -> Path:
    """Return a copy of the run, with its cache."""
    shutil.copytree(run_path, tmp_path / "run")
    return tmp_path / "run"


def wait_for(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def test_an_added_sample_appears_without_a_failed_request(copied_run: Path, sketch_file: str, tmp_path: Path) -> None:
    encoder = Encoder(copied_run)
    index = build_index(encoder, encoder.run.manifest(), progress=False)
    index.save(copied_run / "index")
    said: list[str] = []
    app = open_reloading_app(copied_run, say=said.append, seconds=0.1)
    is_done, statuses = threading.Event(), []
    with run_in_background(guard_app(app)) as address, httpx.Client(base_url=address, timeout=60) as client:
        before = client.get("/api/info").json()
        assert before["samples"] == 120

        def ask() -> None:
            with httpx.Client(base_url=address, timeout=60) as other:
                while not is_done.is_set():
                    statuses.append(other.get("/api/samples/17/neighbors?k=5").status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        images = encoder.run.manifest()
        assert images.pixels is not None
        np.savez(tmp_path / "more.npz", images=255 - images.pixels[:3], labels=np.array([0, 1, 2]))
        extend_index(index, encoder, str(tmp_path / "more.npz"))
        index.save(copied_run / "index")
        wait_for(lambda: client.get("/api/info").json()["samples"] == 123)
        time.sleep(0.3)
        is_done.set()
        thread.join()
        assert len(statuses) > 3
        assert set(statuses) == {200}
        assert client.get("/api/info").json()["version"] != before["version"]
        assert client.get("/api/samples/122/neighbors?k=3").status_code == 200
        assert said[-1] == "the index was reloaded"


@pytest.mark.timeout(400)
def test_two_processes_reload_under_load_without_a_failed_request(copied_run: Path, tmp_path: Path) -> None:
    """Clients with connections of their own ask all the time; none sees an error, and both processes get the sample."""
    encoder = Encoder(copied_run)
    index = build_index(encoder, encoder.run.manifest(), progress=False)
    index.save(copied_run / "index")
    port, is_done, statuses = free_port(), threading.Event(), []
    command = [sys.executable, "-m", "nearfar", "serve", str(copied_run), "--port", str(port), "--workers", "2"]
    address = f"http://127.0.0.1:{port}"

    def ask() -> None:
        while not is_done.is_set():  # a new connection each time, which any of the processes accepts
            try:
                statuses.append(httpx.get(f"{address}/api/samples/17/neighbors?k=5", timeout=60).status_code)
            except httpx.HTTPError as error:
                statuses.append(repr(error))

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        try:
            assert server.stdout is not None
            while not server.stdout.readline().startswith("http"):
                assert server.poll() is None
            for thread in threads:
                thread.start()
            images = encoder.run.manifest()
            assert images.pixels is not None
            np.savez(tmp_path / "more.npz", images=255 - images.pixels[:3], labels=np.array([0, 1, 2]))
            extend_index(index, encoder, str(tmp_path / "more.npz"))
            index.save(copied_run / "index")

            def is_reloaded() -> bool:
                return all(httpx.get(f"{address}/api/info", timeout=60).json()["samples"] == 123 for _ in range(12))

            wait_for(is_reloaded, seconds=240)
            before = len(statuses)
            wait_for(lambda: len(statuses) > before + 8, seconds=60)
        finally:
            is_done.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            server.terminate()
    assert len(statuses) > 20
    assert set(statuses) == {200}


def test_a_failure_keeps_the_old_index(copied_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    app = open_reloading_app(copied_run, say=said.append, seconds=0.1)
    failures = RELOADS.labels("failed")._value.get()
    with run_in_background(guard_app(app)) as address, httpx.Client(base_url=address, timeout=60) as client:
        (copied_run / "config.yaml").rename(copied_run / "moved.yaml")
        Index.from_vectors(np.eye(4)).save(copied_run / "index")
        wait_for(lambda: any("the old one is still served" in line for line in said))
        assert client.get("/api/info").json()["samples"] == 120
        assert client.get("/ready").text == "ready\n"
        assert RELOADS.labels("failed")._value.get() == failures + 1
