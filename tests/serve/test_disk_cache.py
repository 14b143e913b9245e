from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from nearfar.serve.background_task import BackgroundTask
from nearfar.serve.disk_cache import load_or_compute


def test_computed_once_per_key_and_again_if_damaged(tmp_path: Path) -> None:
    calls = []

    def make() -> dict[str, torch.Tensor]:
        calls.append(1)
        return {"x": torch.full((2,), float(len(calls)))}

    path = tmp_path / "serve" / "x.safetensors"
    for key, count in (({"a": 1}, 1), ({"a": 1}, 1), ({"a": 2}, 2)):
        assert load_or_compute(path, key, make)["x"].tolist() == [count] * 2
    path.write_bytes(path.read_bytes()[:40])
    assert load_or_compute(path, {"a": 2}, make)["x"].tolist() == [3, 3]
    assert load_or_compute(path, {"a": 2}, make)["x"].tolist() == [3, 3]


def test_background_task_starts_on_demand_and_raises_its_error() -> None:
    gate, started = threading.Event(), threading.Event()

    def work() -> int:
        started.set()
        gate.wait(10)
        return 7

    task = BackgroundTask(work)
    assert not started.is_set()
    assert task.poll() is None
    assert started.wait(10)
    gate.set()
    assert task.wait() == task.poll() == 7

    failing = BackgroundTask(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.wait()
