"""Start runs on several processes: `start(world, jobs)` in the test, `python -m rank_runs` in each process.

A job is a dictionary with config (as a tree), out, and options:

    stop    step after which to save the state, as stopped.safetensors, and the best weights so far
    begin   a state to resume from
    steps   step after which to stop
    float64 train in double precision: true, or "from the start" if the network cannot be converted later

Each process writes its final state to state-RANK.safetensors. A job {"check": NAME} is one of `rank_checks`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nearfar.config.merge import from_dict
from nearfar.losses.proxies.class_memory import ClassMemory
from nearfar.runs import BEST, CHECKPOINT
from nearfar.training.checkpoint import load_state, save_state
from nearfar.training.components import make_projection
from nearfar.training.distributed import process_group
from nearfar.training.resume import resumed_settings
from nearfar.training.splits import open_manifest
from nearfar.training.state import TrainState
from nearfar.training.trainer import Trainer
from rank_checks import CHECKS

Job = dict[str, Any]
STOPPED_BEST = "stopped.best.safetensors"


def run_job(job: Job) -> None:
    """One run, on this rank, or a check."""
    if "check" in job:
        return CHECKS[job["check"]]()
    out = Path(job["out"])
    config = from_dict(job["config"])
    wide = torch.float64 if job.get("float64") == "from the start" else torch.float32
    torch.set_default_dtype(wide)
    trainer = Trainer(config, open_manifest(config.data), out, say=lambda _: None)
    torch.set_default_dtype(torch.float32)
    if job.get("float64") is True:
        in_double_precision(trainer.state)
    if "begin" in job:
        if process_group.is_main_process():
            (out / CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
            # jobs differ in settings that must not change the result, such as micro_batch
            begin = load_state(Path(job["begin"])) | {"settings": resumed_settings(config)}
            save_state(out / CHECKPOINT, begin)
            best = Path(job["begin"]).with_name(STOPPED_BEST)
            if best.exists():
                (out / BEST).write_bytes(best.read_bytes())
        process_group.barrier()
        trainer.state.load(out)
    if "stop" in job:
        trainer.fit(progress=False, stop_after=job["stop"])
        stopped = trainer.state.state_dict()
        if process_group.is_main_process():
            save_state(out / "stopped.safetensors", stopped)
            if (out / BEST).exists():
                (out / STOPPED_BEST).write_bytes((out / BEST).read_bytes())
    trainer.fit(progress=False, stop_after=job.get("steps"))
    ended = trainer.state.state_dict() | {"warned": None, "settings": None}  # rank 0 alone warns
    return save_state(out / f"state-{process_group.rank()}.safetensors", ended)


def in_double_precision(state: TrainState) -> None:
    """Convert the network, the loss and the sum of losses to float64. Data and tables keep their dtype."""
    state.embedder.double()
    state.loss.double()
    for part in state.loss.modules():
        if isinstance(part, ClassMemory):
            part.rows = part.rows.float()  # its recount() would change rows of float64 in place
    state.dtype = torch.float64
    state.loss_sum = state.loss_sum.double()
    if state.ema is not None:
        state.ema.double()
    state.projection = make_projection(state.config, state.embedder)


def start(world: int, jobs: Sequence[Job], folder: Path, *, timeout: float = 1800) -> None:
    """All jobs, one after the other, in one group of `world` processes; an error of a rank is raised here."""
    plan = folder / f"jobs-{world}.json"
    plan.write_text(json.dumps(list(jobs)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world):
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{key: str(value) for key, value in group.items()}, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "rank_runs", str(plan)]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=timeout)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [error for process, error in zip(processes, errors, strict=True) if process.returncode]
    if failed:
        raise RuntimeError("\n".join(["a rank ended with an error", *(error[-3000:] for error in failed)]))


def main() -> None:
    torch.set_num_threads(1)
    with process_group.join_process_group():
        for job in json.loads(Path(sys.argv[1]).read_text()):
            run_job(job)


if __name__ == "__main__":
    main()
