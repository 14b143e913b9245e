"""`nearfar serve --workers`: one port, shared vectors, replaced processes, added-up metrics; graceful shutdown."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from nearfar.serve.collection import Collection
from nearfar.serve.workers import threads_per_process
from ports import free_port

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def server(run_path: Path, collection: Collection) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Two processes, started as a container does: the token is in the environment."""
    port = str(free_port())
    command = [sys.executable, "-m", "nearfar", "serve", str(run_path), "--port", port, "--workers", "2"]
    environment = {**os.environ, "NEARFAR_TOKEN": TOKEN}
    environment.pop("OMP_NUM_THREADS", None)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if line.startswith("http"):
                break
        assert printed.endswith(f"http://127.0.0.1:{port}/   (press Ctrl-C to stop)\n"), printed
        assert TOKEN not in printed
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def children(process: int) -> list[int]:
    """Return the processes that serve: those that have mapped the index."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(pid) for pid in found if "index-all/vectors" in Path(f"/proc/{pid}/maps").read_text()]


def get(address: str, path: str) -> httpx.Response:
    return httpx.get(f"{address}{path}", headers={"authorization": f"Bearer {TOKEN}"}, timeout=60)


def test_processes_divide_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [threads_per_process(count) for count in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
@pytest.mark.timeout(240)
def test_workers_share_the_vectors_and_are_replaced(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    workers = children(process.pid)
    assert len(workers) == 2, "both have mapped the file of the vectors"
    threads = f"OMP_NUM_THREADS={threads_per_process(2)}".encode()
    for pid in workers:
        assert threads in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"), "the processes divide the cores"
    for _ in range(20):  # each on a new connection, which any of the processes accepts
        assert get(address, "/api/samples/17/neighbors?k=5").json()["neighbors"]
    name = r'nearfar_requests_total\{method="GET",route="/api/samples/\{id\}/neighbors",status="200"\} 20\.0'
    assert re.search(name, get(address, "/metrics").text), "the requests of both processes are added up"
    os.kill(workers[0], signal.SIGKILL)
    end = time.monotonic() + 90
    while len(now := children(process.pid)) < 2 or workers[0] in now:
        assert time.monotonic() < end
        assert get(address, "/health").status_code == 200, "the other process goes on"
        time.sleep(0.2)
    assert workers[1] in now
    process.terminate()
    assert process.wait(60) == 143
    for pid in now:
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


@pytest.mark.timeout(240)
def test_shutdown_answers_the_requests_that_have_begun(run_path: Path, collection: Collection) -> None:
    """A request whose body is still arriving at SIGTERM is answered, and the exit code is that of SIGTERM."""
    port = free_port()
    command = [sys.executable, "-m", "nearfar", "serve", str(run_path), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("http"):
            assert process.poll() is None
        body = b'{"strokes": [[[0, 0], [100, 100]]]}'
        is_sent = threading.Event()

        def slowly() -> Iterator[bytes]:
            yield body[:5]
            is_sent.set()
            time.sleep(1.5)
            yield body[5:]

        answers: list[int] = []

        def ask() -> None:
            headers = {"content-type": "application/json", "content-length": str(len(body))}
            answers.append(
                httpx.post(
                    f"http://127.0.0.1:{port}/api/search", content=slowly(), headers=headers, timeout=60
                ).status_code
            )

        thread = threading.Thread(target=ask)
        thread.start()
        assert is_sent.wait(30)
        time.sleep(0.5)
        process.terminate()
        thread.join(60)
        assert answers == [200]
        assert process.wait(60) == 143


# Programs that a shell starts in the background ignore SIGINT, and so do their children, such as these tests.
BUSY = """
import signal
import sys
import torch
import nearfar.serve.collection
from nearfar.cli import main

def never_ends(vectors):
    x = torch.ones(1000, 1000)
    while True:
        x @ x

nearfar.serve.collection.lay_out_map = never_ends
signal.signal(signal.SIGINT, signal.default_int_handler)
main(["serve", sys.argv[1], "--port", sys.argv[2]])
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_shutdown_while_the_map_is_computed(
    sent: signal.Signals, code: int, run_path: Path, collection: Collection, tmp_path: Path
) -> None:
    """Python cannot end threads that run C++ code. The process would be aborted with another exit code."""
    shutil.copytree(run_path, tmp_path / "run")
    (tmp_path / "run" / "serve" / "map-all.safetensors").unlink(missing_ok=True)
    port = str(free_port())
    command = [sys.executable, "-c", BUSY, str(tmp_path / "run"), port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            while not process.stdout.readline().startswith("http"):
                assert process.poll() is None
            assert httpx.get(f"http://127.0.0.1:{port}/api/map", timeout=60).status_code == 202
            time.sleep(0.5)
            process.send_signal(sent)
            assert process.wait(60) == code, process.stderr.read()
            assert "terminate called" not in process.stderr.read()
        finally:
            process.kill()
    assert not list((tmp_path / "run").glob(".serve.lock")), "the run can be served again"
