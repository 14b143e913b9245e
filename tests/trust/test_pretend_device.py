"""Everything runs on a CUDA device without mixing devices, and the host waits only where this table says so.

No real GPU is needed: see `harness/pretend_cuda.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
    "hap": 1,
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
    # the waits of the loss
    **{f"step {recipe}": 1 for recipe in ("angular", "a-profs", "hap", "pnp", "rdml", "smooth-ap")},
    # the sampler chooses the next batch by the embeddings of this one
    **{f"step {pair}-profs-hncm": 1 for pair in "clmnt"},
    "step a-profs-hncm": 2,
    "step with ema and clipping": 1,  # torch's AveragedModel copies its counter
}


# Waits per step on two processes. PyTorch's SyncBatchNorm selects statistics by a mask, three times in each layer.
RANK_WAITS = {"synchronized batch norm": 3 * 9}


def errors(results: dict[str, Any]) -> dict[str, str]:
    return {name: result["error"] for name, result in results.items() if "error" in result}


def waits(results: dict[str, Any]) -> dict[str, int]:
    return {name: len(result["waits"]) for name, result in results.items() if result["waits"]}


def test_nothing_mixes_devices_or_waits() -> None:
    """One process runs everything, because importing everything takes seconds."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.device_checks"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])

    planted = results.pop("planted")
    mixes = [name for name in planted if name.startswith("mix")]
    assert len(mixes) == 7
    assert all(planted[name]["error"].startswith("DeviceMixError") for name in mixes)
    counted = {name: result for name, result in planted.items() if name not in mixes}
    assert waits(counted) == {name: 1 for name in counted if name.startswith("1")}
    assert [name for name in counted if name.startswith("0")]

    assert {group: errors(scenarios) for group, scenarios in results.items()} == {group: {} for group in results}

    losses = results["losses"]
    expected = LOSS_WAITS | {f"{name} {form}": n for name, n in LOSS_WAITS.items() for form in VARIANTS} | SAMPLED
    assert waits(losses) == {name: expected[name] for name in losses if expected.get(name, 0)}

    additions = results["additions"]
    ours = {name: result for name, result in additions.items() if not name.startswith(("compat", "validate"))}
    assert waits(ours) == {}
    assert any(name.startswith("compat") for name in additions)

    pacers = results["pacers"]
    assert waits({name: r for name, r in pacers.items() if "update" not in name and "resumed" not in name}) == {}
    assert waits(results["models"] | results["loaders"]) == {}

    steps = results["steps"]
    assert waits({name: result for name, result in steps.items() if "log entry" not in name}) == STEP_WAITS
    assert all(len(result["waits"]) <= 1 for name, result in steps.items() if "log entry" in name)
    assert waits(results["ranks"]) == RANK_WAITS
