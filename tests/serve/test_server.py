"""`nearfar serve` as a user starts it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from click.testing import CliRunner

from benchmarks.serve import forward_pass, image_requests, load, page, sample_requests
from nearfar.cli import main
from nearfar.errors import NearfarError
from nearfar.serve.collection import Collection, open_collection
from nearfar.serve.command import serve_command
from tests.harness.hostile import Outcome

TOKEN = "a-token-of-enough-letters"


def test_command_serves_with_a_token(run_path: Path, collection: Collection) -> None:
    command = [sys.executable, "-m", "nearfar", "serve", str(run_path), "--port", "0", "--token", TOKEN]
    refused = CliRunner().invoke(main, ["serve", str(run_path), "--port", "0"])
    assert refused.exit_code == 2
    command[command.index("0")] = port = str(_free())
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines[0] == "120 samples of 10 classes\n"
        assert lines[1].startswith(f"http://127.0.0.1:{port}/?token={TOKEN} ")
        where = lines[1].split()[0]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            first = _patient(client, "/api/info")
            assert first.status_code == 401
            headers = {"authorization": f"Bearer {TOKEN}"}
            assert client.get("/api/info", headers=headers).json()["samples"] == 120
            assert client.get(where, follow_redirects=True).text.startswith("<!doctype html>")
            assert client.get("/api/info").status_code == 200, "by the cookie"
    finally:
        process.terminate()
        process.wait(30)


def test_errors_are_one_line(run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, words in (
        (["serve", str(tmp_path)], "is not a run directory"),
        (["serve", str(run_path), "--token", "short"], "--token must have at least 16"),
        (["serve", str(run_path), "--split", "val"], "has no val samples"),
    ):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1
        assert words in result.output
        assert len(result.output.splitlines()) == 1
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(NearfarError, match=r"needs fastapi: pip install -e '\.\[web\]' in"):
        serve_command(run_path, host="127.0.0.1", port=8000, token=None, split="all")


def test_cached_vectors_are_used_again(run_path: Path, collection: Collection) -> None:
    kept = run_path / "serve" / "vectors-all.safetensors"
    stamp = kept.stat().st_mtime_ns
    again = open_collection(run_path, say=lambda _: None)
    assert kept.stat().st_mtime_ns == stamp
    assert again.vectors.equal(collection.vectors)
    assert again.version == collection.version


def test_load_of_the_benchmark(address: str, collection: Collection) -> None:
    port = urlsplit(address).port
    assert port is not None
    for requests in (image_requests(collection, 20), sample_requests(collection, 20)):
        found = asyncio.run(load("some", port, requests, clients=5, seconds=0.5))
        assert found.errors == 0
        assert found.answers >= 5
        assert 0 < found.p50 <= found.p99
    assert forward_pass(collection, 2, rounds=2) > 0
    text = page([found], {1: 2.5}, Outcome(), "About.", "command")
    assert f"| some | {found.answers:,} |" in text
    assert "2.50 ms per image in batches of 1" in text


def _free() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _patient(client: httpx.Client, path: str) -> httpx.Response:
    for _ in range(300):
        try:
            return client.get(path)
        except httpx.ConnectError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")
