"""Check nearfar on a real GPU in about five minutes: `python -m benchmarks.gpu`.

The report has four parts: values, gradients and host waits of every loss against the CPU; the speed of every loss
against pytorch-metric-learning; images per second of a network in training; and the equality of two processes and one.
Paste the report into an issue, also if everything is right.
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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import nearfar
from benchmarks.peers import peer
from benchmarks.proxy_speed import PROXY_LOSSES, make
from benchmarks.speed import LOSSES, PER_CLASS
from benchmarks.timing import class_batch
from nearfar.losses import create
from nearfar.models import create_embedder

CLASSES, DIM = 100, 128
# Largest difference from the CPU, relative to the largest entry. Both compute in float32, in another order.
TOLERANCE = 1e-3
# Losses that read values on the host, see docs/gpu.md. The others must not.
MAY_WAIT = ("angular", "dro chi2", "rdml", "smooth-ap", "triplet smooth")
# Losses whose random draws differ between devices, so their values cannot be compared
RANDOM = ("margin distance-weighted",)
WAIT = "called a synchronizing CUDA operation"


def make_loss(label: str) -> nn.Module:
    """Create a loss of the speed benchmark, with the same proxies each time."""
    torch.manual_seed(0)
    return make(label, CLASSES, DIM, 3) if label in PROXY_LOSSES else LOSSES[label]()


def step(loss: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the value of a loss and its gradient."""
    rows = x.detach().clone().requires_grad_()
    value: Tensor = loss(rows, labels)
    value.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    return value.detach(), rows.grad


def count_waits(call: Callable[[], object], device: torch.device) -> int:
    """Count how often the host waits for the GPU. On the CPU it never does."""
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
    """Compare a loss with the CPU. Return a description of what is wrong, or an empty text."""
    x, labels = class_batch(batch, DIM, per_class=PER_CLASS.get(label, 5))
    expected = step(make_loss(label), x, labels)
    loss, x, labels = make_loss(label).to(device), x.to(device), labels.to(device)
    found = step(loss, x, labels)
    problems = []
    if label not in RANDOM:
        for name, ours, theirs in zip(("value", "gradient"), found, expected, strict=True):
            difference = float((ours.cpu() - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))
            if not difference <= TOLERANCE:
                problems.append(f"{name} differs by {difference:.1e}")
    waits = count_waits(lambda: step(loss, x, labels), device)
    if waits and label not in MAY_WAIT:
        problems.append(f"the host waits {waits} times")
    return ", ".join(problems)


def milliseconds(call: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Return the mean time of a call after three calls without timing."""
    for _ in range(3):
        call()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / repeats * 1e3


def synchronize(device: torch.device) -> None:
    """Wait for the GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare_speed(label: str, device: torch.device, batch: int, repeats: int) -> str:
    """Time forward and backward of a loss and of its counterpart in pytorch-metric-learning."""
    x, labels = class_batch(batch, DIM, per_class=PER_CLASS.get(label, 5))
    x, labels = x.to(device), labels.to(device)
    loss = make_loss(label).to(device)
    ours = milliseconds(lambda: step(loss, x, labels), device, repeats=repeats)
    rival: Any = peer(label) if label in LOSSES else None
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
    """Compare the gradients of two processes with those of one: on two GPUs if there are two, else on the CPU."""
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
    return f"nearfar {nearfar.__version__}, torch {torch.__version__}{cuda}, {name}, {torch.cuda.device_count()} GPUs"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", help="device to check (default cuda); cpu tests this program")
    parser.add_argument("--batch", type=int, default=640, help="batch size of the losses (default 640)")
    parser.add_argument("--only", nargs="+", metavar="LOSS", help="losses to check, by default all")
    parser.add_argument("--repeats", type=int, default=20, help="number of timed calls (default 20)")
    parser.add_argument("--side", type=int, default=224, help="side of the images in pixels (default 224)")
    parser.add_argument("--images", type=int, default=64, help="number of images in a batch (default 64)")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA GPU: run this on a machine with one, or pass --device cpu to test the program")
    labels = [label for label in sorted([*LOSSES, *PROXY_LOSSES]) if args.only is None or label in args.only]
    if not labels:
        parser.error(
            f"--only {' '.join(args.only)}: there is no such loss. Known: {', '.join([*LOSSES, *PROXY_LOSSES])}"
        )
    print(f"```text\n{describe_machine(device)}\n\nlosses against the CPU, B = {args.batch}, d = {DIM}", flush=True)
    failures = 0
    for label in labels:
        try:
            problem = check_loss(label, device, args.batch)
        except (RuntimeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        failures += bool(problem)
        print(f"  {label:26s} {'FAILED: ' + problem if problem else 'ok'}", flush=True)
    print("\nforward and backward")
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
    print(f"\ntwo processes against one: {processes}\n\n{failures} failures\n```")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
