"""Everything runs on a CUDA device without mixing devices, and the host waits only where this table says so.

No real GPU is needed: see `harness/pretend_cuda.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None,
    reason="NOT CHECKED: no loss, model or recipe was run on the pretend GPU, because g++ is not installed",
)

# Waits of the host per forward and backward pass. All other losses have 0. docs/gpu.md explains these.
LOSS_WAITS = {
    "angular": 1,  # the largest number of positives of an anchor, the number of passes over the matrix
    "pnp": 1,
    "rdml": 1,
    "smooth-ap": 1,
    "triplet smooth": 1,
    "dro chi2": 3,  # case distinction; more if the support shrinks
}
VARIANTS = ("weights", "float16", "bfloat16 autocast", "references", "representatives", "multi-hot")
SAMPLED = {"triplet smooth representatives": 0}  # PROFS batches have one triplet per example, without a table


# Waits per step of the trainer. All other recipes and settings have 0.
STEP_WAITS = {
    **{f"step {recipe}": 1 for recipe in ("angular", "a-profs", "pnp", "rdml", "smooth-ap")},  # the waits of the loss
    # the sampler chooses the next batch by the embeddings of this one
    **{f"step {pair}-profs-hncm": 1 for pair in "clmnt"},
    "step a-profs-hncm": 2,
    "step with ema and clipping": 1,  # torch's AveragedModel copies its counter
}


PARTS = ("losses", "additions", "pacers", "metrics", "models")


@cache
def run_groups(*groups: str) -> dict[str, dict[str, Any]]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.device_checks", *groups],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


def checked(group: str) -> dict[str, Any]:
    """The scenarios of a group. The groups of PARTS run in one process, because importing everything takes seconds."""
    return run_groups(*(PARTS if group in PARTS else ("steps", "runs")))[group]


def errors(results: dict[str, Any]) -> dict[str, str]:
    return {name: result["error"] for name, result in results.items() if "error" in result}


def waits(results: dict[str, Any]) -> dict[str, int]:
    return {name: len(result["waits"]) for name, result in results.items() if result["waits"]}


def test_losses() -> None:
    results = checked("losses")
    assert errors(results) == {}
    expected = LOSS_WAITS | {f"{name} {form}": n for name, n in LOSS_WAITS.items() for form in VARIANTS} | SAMPLED
    assert waits(results) == {name: expected[name] for name in results if expected.get(name, 0)}


def test_miners_memory_and_compat() -> None:
    results = checked("additions")
    assert errors(results) == {}
    ours = {name: result for name, result in results.items() if not name.startswith(("compat", "validate"))}
    assert waits(ours) == {}
    assert any(name.startswith("compat") for name in results)


def test_pacers() -> None:
    results = checked("pacers")
    assert errors(results) == {}
    assert waits({name: r for name, r in results.items() if "update" not in name and "resumed" not in name}) == {}


def test_metrics_and_models() -> None:
    results = checked("metrics") | checked("models")
    assert errors(results) == {}
    assert waits({name: result for name, result in results.items() if name.startswith("model")}) == {}


def test_steps_of_the_trainer() -> None:
    results = checked("steps")
    assert errors(results) == {}
    assert waits({name: result for name, result in results.items() if "log entry" not in name}) == STEP_WAITS
    assert all(len(result["waits"]) <= 1 for name, result in results.items() if "log entry" in name)


def test_runs_resume_exactly() -> None:
    assert errors(checked("runs")) == {}


def test_the_device_finds_what_is_planted() -> None:
    code = """
from tests.harness.pretend_cuda import LOG, DeviceMixError, to_cuda, watched
import torch
x, cpu = to_cuda(torch.randn(4, 3)), torch.randn(4, 3)
mixes = {
    "add": lambda: x + cpu, "product": lambda: x @ cpu.T, "cat": lambda: torch.cat([x, cpu]),
    "numpy": lambda: x.numpy(),
    "index": lambda: cpu[to_cuda(torch.tensor([0]))],
    "generator": lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
    "index_add": lambda: torch.zeros(4, 3, device="cuda").index_add_(0, torch.zeros(4, dtype=torch.int64), x),
}
for name, mix in mixes.items():
    try:
        with watched():
            mix()
    except (DeviceMixError, RuntimeError) as error:
        print(name, type(error).__name__)
waits = {
    "item": (lambda: float(x.sum()), 1), "mask": (lambda: x[x > 0], 1), "unique": (lambda: x.unique(), 1),
    "tensor": (lambda: torch.tensor([1.0], device="cuda"), 1), "cpu": (lambda: x.cpu(), 1),
    "to": (lambda: cpu.to("cuda"), 1), "async": (lambda: cpu.to("cuda", non_blocking=True), 0),
    "where": (lambda: torch.where(x > 0, x, 0.0) @ x.T, 0), "scalar": (lambda: x * cpu.sum(), 0),
}
for name, (call, expected) in waits.items():
    with watched():
        call()
    assert len(LOG.take()) == expected, name
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names = ["add", "product", "cat", "numpy", "index", "generator", "index_add"]
    assert done.stdout.split() == [word for name in names for word in (name, "DeviceMixError")]
