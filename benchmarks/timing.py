"""Timing that other work on the machine hardly affects: candidates run in turn, and the best time of each is used."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nearfar.formatting import counted


def best_ms(
    candidates: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 7,
    budget: float = 20.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the shortest time of each candidate in milliseconds.

    Each candidate is first called once without timing. Then all candidates are called and timed in turn, `repeats`
    times. A candidate that would take more than `budget` seconds in total is timed fewer times, but at least once.
    """
    best: dict[str, float] = {}
    spent = dict.fromkeys(candidates, 0.0)
    for call in candidates.values():
        call()
    for turn in range(repeats):
        for name, call in candidates.items():
            if turn and spent[name] * (turn + 1) / turn > budget:
                continue
            start = clock()
            call()
            took = clock() - start
            spent[name] += took
            best[name] = min(best.get(name, float("inf")), took * 1e3)
    return best


def step_clock() -> Callable[[], float]:
    """Return the clock for steps that only compute: CPU time with one thread, otherwise wall time.

    CPU time does not count the time in which other processes use the core.
    """
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak memory of the tensors that the call allocates, as measured by the profiler of torch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    results = recorded.profiler.kineto_results if recorded.profiler else None
    events = [] if results is None else [e for e in results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def class_batch(batch: int, dim: int, *, per_class: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random unit vectors [batch, dim] around class centers, and their labels.

    Each class has `per_class` vectors; the last class may have fewer.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(batch) // per_class
    centers = torch.randn(int(labels.max()) + 1, dim, generator=generator)
    rows = centers[labels] + 1.5 * torch.randn(batch, dim, generator=generator)
    return torch.nn.functional.normalize(rows), labels


def step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a function that runs one forward and backward pass of the loss on the batch (x, y)."""

    def call() -> None:
        x.grad = None
        loss(x, y).backward()  # type: ignore[no-untyped-call]

    return call


def floor(x: Tensor) -> Callable[[], None]:
    """Return a function that computes the three matrix products of a pair loss on this batch."""
    x = x.detach()
    g = torch.randn(len(x), len(x))

    def call() -> None:
        _ = x @ x.T, g @ x, g.T @ x

    return call


def machine() -> str:
    """Return a line with the versions, number of threads and CPU of a measurement."""
    threads = counted(torch.get_num_threads(), "thread")
    return f"torch {torch.__version__}, {threads}, Python {platform.python_version()}, {_cpu()}"


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
