"""When a process dies under torchrun, all restart and the run ends with the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nearfar.training.log import read_log

STEPS = 600
COMMAND = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
SETTINGS = [f"steps={STEPS}", "batches.size=24", "model.dim=8", "log_every=1", "save_every=0.05", "threads=1"]


def torchrun(source: str, out: Path) -> subprocess.Popen[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    train = ["-m", "nearfar", "train", source, "--recipe", "mpa-ap", "--out", str(out), *settings]
    return subprocess.Popen([sys.executable, *COMMAND, *train], text=True, stderr=subprocess.PIPE)


def worker(parent: int, rank: int) -> int:
    """The process of a rank, among the children of torchrun."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}" in Path(f"/proc/{child}/environ").read_text().split("\0"):
            return int(child)
    raise AssertionError(f"torchrun has no rank {rank}")


def step(out: Path) -> int:
    path = out / "log.jsonl"
    return max((entry["step"] for entry in read_log(path)), default=0) if path.is_file() else 0


def finish(process: subprocess.Popen[str]) -> None:
    errors = process.communicate(timeout=1800)[1]
    assert process.returncode == 0, errors[-3000:]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the rank's process in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_the_middle_of_an_epoch(rank: int, vectors: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    finish(torchrun(vectors, whole))

    cut = tmp_path / "cut"
    process = torchrun(vectors, cut)
    while step(cut) < STEPS // 3 or step(cut) % 5 in (0, 4):  # an epoch has 5 batches
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(worker(process.pid, rank), signal.SIGKILL)
    assert not (cut / "scores.json").exists()
    finish(process)

    a, b = (load_file(out / "model.safetensors") for out in (whole, cut))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    steps = [[e["step"] for e in read_log(out / "log.jsonl") if e["kind"] == "step"] for out in (whole, cut)]
    assert steps == [list(range(1, STEPS + 1))] * 2
