"""The conditions of the container without Docker: a read-only root, an unprivileged user, the Dockerfile's variables.

The server starts in its own mount namespace, in which the root file system is read-only and /tmp is new and empty.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from nearfar.serve.collection import Collection
from ports import free_port

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-enough-letters"
USER = "10001"
# $1 is the run, $2 the folder of the data, $3 "rw" or "ro" for the run. The rest is the command.
SCRIPT = """
set -e
run=$1 data=$2 mode=$3; shift 3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/run /mnt/data
mount --bind "$run" /mnt/run
mount -o remount,bind,$mode /mnt/run
mount --bind "$data" /mnt/data
mount -o remount,bind,ro /mnt/data
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p "$data"
mount --bind /mnt/data "$data"
mount -o remount,bind,ro /
cd /
exec "$@"
"""
# The capability lets the user read the Python of the tests, which can be in the home directory of root, but not write.
AS_USER = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--no-new-privs"]
READ_ALL = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]


def in_container(run: Path, data: Path, mode: str, command: list[str]) -> list[str]:
    """Return a command that runs another command under the conditions of the container."""
    inner = [*AS_USER, *READ_ALL, *command]
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        SCRIPT,
        "sh",
        str(run),
        str(data),
        mode,
        *inner,
    ]


def image_variables() -> dict[str, str]:
    """Return the variables that the last stage of the Dockerfile sets, with the Python of the tests."""
    last = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").rpartition("FROM ")[2]
    (line,) = re.findall(r"^ENV (.+)$", last, flags=re.MULTILINE)
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
    return {**dict(re.findall(r"([A-Z]+)=(\S+)", line)), **own}


@pytest.fixture
def copied(run_path: Path, collection: Collection, tmp_path: Path) -> Path:
    """A run with a complete cache that belongs to the user of the container."""
    path = tmp_path / "run"
    shutil.copytree(run_path, path)
    for each in (path, *path.rglob("*")):
        os.chown(each, int(USER), int(USER))
    return path


@pytest.fixture(params=["rw", pytest.param("ro", marks=pytest.mark.slow)])
def server(
    request: pytest.FixtureRequest, copied: Path, sketch_file: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    data = Path(sketch_file).parent
    if shutil.which("unshare") is None or shutil.which("setpriv") is None or os.getuid() != 0:
        pytest.skip("needs root, unshare and setpriv to make the root file system read-only")
    check = subprocess.run(in_container(copied, data, "rw", ["true"]), capture_output=True, text=True)
    if check.returncode:
        pytest.skip(f"mounts are not allowed here: {check.stderr.strip()}")
    port = free_port()
    workers = "2" if request.param == "rw" else "1"
    options = ["--host", "0.0.0.0", "--port", str(port), "--workers", workers]
    command = in_container(
        copied, data, request.param, [sys.executable, "-m", "nearfar", "serve", "/mnt/run", *options]
    )
    environment = {**image_variables(), "NEARFAR_TOKEN": TOKEN}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.timeout(240)
def test_the_server_runs_on_a_read_only_root_as_another_user(
    server: tuple[subprocess.Popen[str], str], sketch_file: str
) -> None:
    process, address = server
    assert process.stdout is not None
    printed = ""
    while not (line := process.stdout.readline()).startswith("http"):
        printed += line
        assert line, printed
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert f"Uid:\t{USER}\t{USER}" in status
    with pytest.raises(OSError, match="Read-only"):
        Path(f"/proc/{process.pid}/root/var/nearfar").touch()
    assert httpx.get(f"{address}/ready", timeout=60).status_code == 200
    assert httpx.get(f"{address}/metrics", timeout=60).status_code in (401, 403)
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert "nearfar_samples 120.0" in httpx.get(f"{address}/metrics", headers=headers, timeout=60).text
    found = httpx.post(f"{address}/api/search", json={"strokes": [[[0, 0], [99, 99]]]}, headers=headers, timeout=60)
    assert len(found.json()["neighbors"]) == 24
    image = httpx.get(f"{address}/api/samples/3/image", headers=headers, timeout=60)
    assert image.status_code == 200
    curves = httpx.get(f"{address}/api/run/curves", headers=headers, timeout=60)  # matplotlib writes its cache to /tmp
    assert "<svg" in curves.text
    process.terminate()
    start = time.monotonic()
    assert process.wait(60) == 143
    assert time.monotonic() - start < 30
