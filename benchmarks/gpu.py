"""Check nearfar on a real GPU in about five minutes: `python -m benchmarks.gpu`.

The report has five parts:

- values and gradients of every loss compared with the CPU, also with sample weights, and how often the host waits for
  the GPU;
- short training runs compared with the CPU;
- the speed of every loss compared with pytorch-metric-learning;
- images per second when training a network;
- gradients on two processes compared with those on one.

Please paste the report into an issue, even if it shows no failures.
"""

from __future__ import annotations

import argparse
import copy
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nearfar
from benchmarks.peers import counterpart, peer
from benchmarks.proxy_speed import PROXY_LOSSES, make
from benchmarks.speed import LOSSES, PER_CLASS
from benchmarks.timing import class_batch
from nearfar.config.merge import resolve
from nearfar.errors import NearfarError
from nearfar.formatting import counted
from nearfar.losses import create
from nearfar.models import create_embedder
from nearfar.training import train

CLASSES, DIM = 100, 128
# Largest allowed difference from the CPU, relative to the largest entry. Both devices compute in float32, but add
# numbers in a different order.
TOLERANCE = 1e-3
# Losses that may make the host (the CPU) wait for values from the GPU (see docs/gpu.md).
MAY_WAIT = ("angular", "dro chi2", "hap", "pnp", "rdml", "smooth-ap", "triplet smooth")
# Losses whose random draws differ between devices, so their values cannot be compared
RANDOM = ("margin distance-weighted",)
# Recipes of the training runs: a proxy loss, a pair loss, a pacer with a memory, a pacer with weights of samples, and
# a sampler with hard negative classes.
RECIPES = ("proxy-anchor", "supcon", "prism", "bspml", "m-profs-hncm")
SAME_RECALL = 0.05  # largest allowed difference of Recall@1 from the CPU; rounding changes the order of neighbors
WAIT = "called a synchronizing CUDA operation"


def make_loss(label: str) -> nn.Module:
    """Create a loss of the speed benchmark. Its proxies are the same in every call."""
    torch.manual_seed(0)
    return make(label, CLASSES, DIM, 3) if label in PROXY_LOSSES else LOSSES[label]()


def step(loss: nn.Module, x: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the value of a loss and its gradient with respect to the embeddings x."""
    rows = x.detach().clone().requires_grad_()
    value: Tensor = loss(rows, labels) if weights is None else loss(rows, labels, weights=weights)
    value.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    return value.detach(), rows.grad


def count_waits(call: Callable[[], object], device: torch.device) -> int:
    """Return how often the host waits for the GPU during the call. For the CPU, the result is 0."""
    if device.type != "cuda":
        call()
        return 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(WAIT in str(warning.message) for warning in caught)


def check_loss(label: str, device: torch.device, batch: int) -> str:
    """Compare a loss on a device with the same loss on the CPU, without and with sample weights.

    Return a description of the problems, or "". It is also a problem if the host waits for the GPU, unless the loss is
    in MAY_WAIT.
    """
    x, labels = class_batch(batch, DIM, per_class=PER_CLASS.get(label, 5))
    there = x.to(device), labels.to(device)
    problems = []
    for form, weights in (("", None), (" with weights", torch.linspace(0.1, 1, batch))):
        expected = step(make_loss(label), x, labels, weights)
        loss, on_device = make_loss(label).to(device), None if weights is None else weights.to(device)
        found = step(loss, *there, on_device)
        for name, ours, theirs in zip(("value", "gradient"), found, expected, strict=True):
            difference = float((ours.cpu() - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))
            if label not in RANDOM and not difference <= TOLERANCE:
                problems.append(f"{name}{form} differs by {difference:.1e}")
        waits = count_waits(partial(step, loss, *there, on_device), device)
        if waits and label not in MAY_WAIT:
            problems.append(f"the host waits {counted(waits, 'time')}{form}")
    return ", ".join(problems)


def check_training(recipe: str, device: torch.device) -> tuple[str, str]:
    """Train on the same vectors on a device and on the CPU.

    Returns:
        A line for the report, and a description of what is wrong, or "".
    """
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(80), 8)
    vectors = (generator.normal(size=(80, 32))[labels] + generator.normal(size=(640, 32))).astype(np.float32)
    recall = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "vectors.npz"
        np.savez(source, features=vectors, labels=labels, split=np.where(labels < 64, "train", "test"))
        for name, where in (("ours", str(device)), ("expected", "cpu")):
            settings = [f"data.source={source}", "epochs=2", "model.dim=16", "untrained=false", f"device={where}"]
            config = resolve("features", width=32, recipe=recipe, settings=settings)
            run = train(config, Path(folder) / name, say=lambda _: None, progress=False)
            recall[name] = run.evaluate(metrics=["recall@1"], device=where)["recall@1"]
    ours, expected = recall["ours"], recall["expected"]
    problem = "" if abs(ours - expected) <= SAME_RECALL else f"Recall@1 is {expected:.1%} on the CPU"
    return f"Recall@1 {ours:.1%}", problem


def milliseconds(call: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Return the mean time of a call in milliseconds. Three untimed calls come first, as a warm-up."""
    for _ in range(3):
        call()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / repeats * 1e3


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has finished its work. For the CPU, do nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare_speed(label: str, device: torch.device, batch: int, repeats: int) -> str:
    """Time the forward and backward pass of a loss and of its counterpart in pytorch-metric-learning.

    Return a line for the report.
    """
    x, labels = class_batch(batch, DIM, per_class=PER_CLASS.get(label, 5))
    x, labels = x.to(device), labels.to(device)
    loss = make_loss(label).to(device)
    ours = milliseconds(lambda: step(loss, x, labels), device, repeats=repeats)
    rival: Any = peer(label) if label in LOSSES else counterpart(make_loss(label))
    if rival is None:
        return f"{ours:9.2f} ms"
    rival = rival.to(device)
    theirs = milliseconds(lambda: step(rival, x, labels), device, repeats=repeats)
    return f"{ours:9.2f} ms  pytorch-metric-learning {theirs:9.2f} ms  ratio {theirs / ours:6.1f}"


def images_per_second(backbone: str, device: torch.device, *, batch: int, side: int, half: torch.dtype | None) -> float:
    """Train a network on random images and return the number of images per second."""
    network = create_embedder(backbone, dim=DIM).to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    loss = create("proxy-anchor", classes=CLASSES, dim=DIM).to(device)
    optimizer = torch.optim.AdamW([*network.parameters(), *loss.parameters()], fused=True)
    x = torch.randn(batch, 3, side, side, device=device).to(memory_format=torch.channels_last)
    labels = torch.arange(batch, device=device) % CLASSES

    def train() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            embeddings = network(x)
        loss(embeddings, labels).backward()
        optimizer.step()

    return batch / milliseconds(train, device, repeats=5) * 1e3


def _compare_processes(rank: int, store: str, device_type: str) -> None:
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device_type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    torch.manual_seed(0)
    network = nn.Linear(8, 4, dtype=torch.float64, device=device)
    shared = DistributedDataParallel(copy.deepcopy(network))
    x, labels = torch.randn(21, 8, dtype=torch.float64).to(device), (torch.arange(21) % 7).to(device)
    create("supcon")(network(x), labels).backward()
    create("supcon")(shared(x[rank::2]), labels[rank::2], across_processes=True).backward()
    for alone, together in zip(network.parameters(), shared.module.parameters(), strict=True):
        torch.testing.assert_close(together.grad, alone.grad, rtol=0, atol=1e-10)
    dist.destroy_process_group()


def compare_processes(device: torch.device) -> str:
    """Compare the gradients of two processes with those of one, and return a line for the report.

    The processes run on two GPUs if there are two, and on the CPU otherwise.
    """
    kind = "cuda" if device.type == "cuda" and torch.cuda.device_count() > 1 else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.spawn(_compare_processes, args=(str(Path(folder) / "store"), kind), nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
        except Exception as error:
            return f"FAILED on {kind}: {str(error).strip().splitlines()[-1]}"
    backend = "two GPUs with nccl" if kind == "cuda" else "two CPU processes with gloo (fewer than two GPUs)"
    return f"equal to 1e-10 on {backend}"


def describe_machine(device: torch.device) -> str:
    """Return the versions and the name of the GPU."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
    gpus = counted(torch.cuda.device_count(), "GPU")
    return f"nearfar {nearfar.__version__}, torch {torch.__version__}{cuda}, {name}, {gpus}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", help="device to check (default cuda); cpu tests this program")
    parser.add_argument("--batch", type=int, default=640, help="batch size of the losses (default 640)")
    parser.add_argument("--only", nargs="+", metavar="LOSS", help="losses to check (default all)")
    parser.add_argument("--recipes", nargs="+", default=RECIPES, help="recipes of the training runs (default five)")
    parser.add_argument("--repeats", type=int, default=20, help="number of timed calls (default 20)")
    parser.add_argument("--side", type=int, default=224, help="side of the images in pixels (default 224)")
    parser.add_argument("--images", type=int, default=64, help="number of images in a batch (default 64)")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        message = "there is no CUDA GPU: run this on a machine with one, or pass --device cpu to test the program"
        print(message, file=sys.stderr)
        return 2
    labels = [label for label in sorted([*LOSSES, *PROXY_LOSSES]) if args.only is None or label in args.only]
    if not labels:
        parser.error(
            f"--only {' '.join(args.only)}: there is no such loss. Known: {', '.join([*LOSSES, *PROXY_LOSSES])}"
        )
    print(
        f"```text\n{describe_machine(device)}\n\nlosses compared with the CPU, B = {args.batch}, d = {DIM}", flush=True
    )
    failures = 0
    for label in labels:
        try:
            problem = check_loss(label, device, args.batch)
        except (RuntimeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        failures += bool(problem)
        print(f"  {label:26s} {'FAILED: ' + problem if problem else 'ok'}", flush=True)
    print("\ntraining runs compared with the CPU")
    for recipe in args.recipes:
        try:
            line, problem = check_training(recipe, device)
        except (RuntimeError, ValueError, NearfarError) as error:
            line, problem = "", f"{type(error).__name__}: {error}".splitlines()[0]
        failures += bool(problem)
        print(f"  {recipe:26s} {line} {'FAILED: ' + problem if problem else 'ok'}", flush=True)
    print("\ntime of a forward and backward pass")
    for label in labels:
        try:
            print(f"  {label:26s} {compare_speed(label, device, args.batch, args.repeats)}", flush=True)
        except (RuntimeError, ValueError) as error:
            failures += 1
            print(f"  {label:26s} FAILED: {type(error).__name__}: {error}".splitlines()[0], flush=True)
    print(f"\nimages per second in training, {args.side} pixels, batches of {args.images}")
    for half, name in ((None, "float32"), (torch.bfloat16, "bfloat16")):
        speed = images_per_second("resnet50", device, batch=args.images, side=args.side, half=half)
        print(f"  resnet50 {name:9s} {speed:8.0f}", flush=True)
    processes = compare_processes(device)
    failures += processes.startswith("FAILED")
    print(f"\ntwo processes compared with one: {processes}\n\n{counted(failures, 'failure')}\n```")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
