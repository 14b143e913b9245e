"""Train on two processes on the pretend CUDA device and compare the weights with those of one process.

The process group has the backends of a machine with GPUs, with gloo in place of nccl.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.harness.pretend_cuda import LOG, watched

import torch  # isort: skip
import torch.distributed as dist  # isort: skip
import numpy as np  # isort: skip
import pytest  # isort: skip

from nearfar.config.merge import resolve
from nearfar.data import open_data
from nearfar.runs import Run
from nearfar.training import train
from nearfar.training.distributed import process_group
from nearfar.training.step import train_step
from nearfar.training.trainer import Trainer

# kind of data, recipe, settings for one and for two processes, further settings for two processes
CASES: dict[str, tuple[str, str, list[str], list[str]]] = {
    "synchronized batch norm": ("pixels", "proxy-anchor", ["batches.size=9"], []),
    "two passes": (
        "pixels",
        "supcon",
        ["batches.name=shuffled", "batches.size=16", "model.freeze_bn=true"],
        ["micro_batch=4"],
    ),
    "split proxies": ("features", "mpa", ["batches.size=15"], ["shard_proxies=true"]),
    "pacer with a memory": ("features", "prism", ["batches.size=null", "batches.classes=3"], []),
}
STEPS = 3


def make_data(folder: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    vectors = (rng.normal(size=(8, 10))[labels] + rng.normal(size=(48, 10))).astype(np.float32)
    np.savez(folder / "features.npz", features=vectors, labels=labels)
    images = rng.integers(0, 256, (48, 12, 12)).astype(np.uint8)
    np.savez(folder / "pixels.npz", pixels=images, labels=labels)


def make_config(kind: str, recipe: str, source: str, settings: list[str]) -> Any:
    base = [f"data.source={source}", "untrained=false", "model.dim=6", f"steps={STEPS}", "model.init=random"]
    return replace(resolve(kind, recipe=recipe, settings=[*base, *settings]), device="cuda")


def take_steps(config: Any, out: Path) -> tuple[dict[str, Any], list[str]]:
    """Train in double precision. Return the weights, and the waits for the GPU in the last step."""
    torch.set_default_dtype(torch.float64)
    trainer = Trainer(config, open_data(config.data.source), out, say=lambda _: None)
    torch.set_default_dtype(torch.float32)
    trainer.start_epoch()
    for _, batch in zip(range(STEPS), trainer.batches(), strict=False):
        LOG.take()
        result = train_step(trainer.state, batch, steps=STEPS)
        trainer.state.count_step(result.loss)
        waits = [f"{kind} at {place}" for kind, place in LOG.take()]
    state = trainer.state.state_dict()
    weights = {f"network {name}": value.cpu() for name, value in state["embedder"].items()}
    return weights | {f"loss {name}": value.cpu() for name, value in state["loss"].items()}, waits


@contextmanager
def gloo_as_nccl() -> Iterator[None]:
    """Make init_process_group use gloo for GPU tensors too, because nccl needs a GPU."""
    init = dist.init_process_group

    def init_with_gloo(backend: str, **options: Any) -> None:
        assert backend == "cpu:gloo,cuda:nccl", backend
        init("cpu:gloo,cuda:gloo", **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_nccl_available", lambda: True)
        patch.setattr(dist, "init_process_group", init_with_gloo)
        yield


def compare(folder: Path) -> dict[str, list[str]]:
    """Train as one of two processes. Return the waits for the GPU in the last step of each case.

    The main process also trains alone, and compares the weights of both trainings. Both processes check that their
    weights equal those of the main process.
    """
    sources = {kind: str(folder / f"{kind}.npz") for kind in ("features", "pixels")}
    is_main = os.environ["RANK"] == "0"
    alone, waits = {}, {}
    if is_main:
        for name, (kind, recipe, settings, _) in CASES.items():
            alone[name], _ = take_steps(make_config(kind, recipe, sources[kind], settings), folder)
    with gloo_as_nccl(), process_group.join_process_group():
        for name, (kind, recipe, settings, more) in CASES.items():
            config = make_config(kind, recipe, sources[kind], [*settings, *more])
            together, waits[name] = take_steps(config, folder)
            if is_main:
                torch.testing.assert_close(together, alone[name], rtol=1e-10, atol=1e-10, msg=f"{name}: weights differ")
            if not config.shard_proxies:  # with sharded proxies, only the main process has all proxies
                of_main = {key: value.clone() for key, value in together.items()}
                process_group.broadcast_from_main(of_main.values())
                for key, value in of_main.items():
                    assert torch.equal(together[key], value), f"{name}: {key} differs between the processes"
        # a whole run: settings, scores and weights of samples are exchanged as CPU tensors
        config = make_config("features", "bspml", sources["features"], ["steps=null", "epochs=2", "log_every=2"])
        train(config, folder / "run", say=lambda _: None, progress=False)
        assert Run(folder / "run").finished
    return waits


def run_pair(folder: Path) -> dict[str, list[str]]:
    """Run this process and another one. Return the waits of this process."""
    make_data(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", "tests.harness.device_ranks", str(folder)]
    other = subprocess.Popen(command, env={**os.environ, **group, "RANK": "1"}, stderr=subprocess.PIPE, text=True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in {**group, "RANK": "0"}.items():
                patch.setenv(key, value)
            waits = compare(folder)
        error = other.communicate(timeout=300)[1]
        assert other.returncode == 0, error[-3000:]
    finally:
        other.kill()
    return waits


def main() -> None:
    torch.set_num_threads(1)
    with watched(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
