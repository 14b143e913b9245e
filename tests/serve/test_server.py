"""`nearfar serve` as a user starts it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
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
from ports import free_port
from tests.harness.hostile import Outcome

TOKEN = "a-token-of-enough-letters"


def test_command_serves_with_a_token(run_path: Path, collection: Collection) -> None:
    command = [sys.executable, "-m", "nearfar", "serve", str(run_path), "--port", "0", "--token", TOKEN]
    refused = CliRunner().invoke(main, ["serve", str(run_path), "--port", "0"])
    assert refused.exit_code == 2
    command[command.index("0")] = port = str(free_port())
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines[0] == "120 samples of 10 classes\n"
        assert lines[1].startswith(f"http://127.0.0.1:{port}/?token={TOKEN} ")
        where = lines[1].split()[0]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/api/info").status_code == 401  # it is listening once it has printed its address
            headers = {"authorization": f"Bearer {TOKEN}"}
            assert client.get("/api/info", headers=headers).json()["samples"] == 120
            assert client.get(where, follow_redirects=True).text.startswith("<!doctype html>")
            assert client.get("/api/info").status_code == 200, "by the cookie"
    finally:
        process.terminate()
        process.wait(30)


def test_errors_are_one_line(run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, words in (
        (["serve", str(tmp_path)], "not a run directory"),
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


def test_port_in_use_is_one_line_and_not_announced(run_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["serve", str(run_path), "--port", str(port)])
    assert result.exit_code == 1
    assert result.output == f"Error: port {port} of 127.0.0.1 is in use: choose another with --port\n"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.1", "--host 192.0.2.1 is not an address of this machine"),
        ("nobody.invalid", "--host nobody.invalid is not an address of this machine"),
    ],
)
def test_unknown_host_is_one_line(host: str, words: str, run_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", str(run_path), "--host", host])
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {words}")
    assert len(result.output.splitlines()) == 1


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
        found = asyncio.run(load("some", (port, os.getpid()), requests, workers=1, clients=5, seconds=0.5))
        assert found.errors == 0
        assert found.answers >= 5
        assert 0 < found.p50 <= found.p99
    assert forward_pass(collection, 2, rounds=2) > 0
    text = page([found], {1: 2.5}, Outcome(), "About.", "command")
    assert f"| 1 | some | {found.answers:,} |" in text
    assert "2.50 ms per image in batches of 1" in text
