"""Speed of pair losses with a cross-batch memory, in nearfar.compat and in pytorch-metric-learning."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from itertools import product

import torch
from torch import nn
from tqdm import tqdm

from benchmarks.peers import load_peers
from benchmarks.speed_report import Row, Size
from benchmarks.timing import best_ms, class_batch, floor, peak_bytes, step, step_clock
from nearfar.compat import losses

MEMORY = (1024, 8192)
WRAPPED = ("ContrastiveLoss", "MultiSimilarityLoss", "SupConLoss")


def filled_memory(library: object, name: str, size: int, dim: int) -> nn.Module:
    """Return the cross-batch memory of a library around a loss, filled with random embeddings."""
    memory: nn.Module = library.CrossBatchMemory(getattr(library, name)(), dim, size)  # type: ignore[attr-defined]
    x, y = class_batch(size, dim, per_class=4, seed=1)
    with torch.no_grad():
        memory(x, y)
    return memory


def measure_memory(name: str, size: int, batch: int, dim: int, *, repeats: int, budget: float) -> Row:
    """Time one loss with a memory of one size."""
    x, y = class_batch(batch, dim, per_class=4)
    x.requires_grad_()
    ours, theirs = (filled_memory(library, name, size, dim) for library in (losses, load_peers().losses))
    same_value = math.isclose(theirs(x, y).item(), ours(x, y).item(), rel_tol=1e-4)
    calls = {"floor": floor(x), "ours": step(ours, x, y), "peer": step(theirs, x, y)}
    ms = best_ms(calls, repeats=repeats, budget=budget, clock=step_clock())
    peak = peak_bytes(calls["ours"])
    return Row(
        loss=name,
        B=batch,
        d=dim,
        ms=round(ms["ours"], 3),
        floor_ratio=round(ms["ours"] / ms["floor"], 3),
        peer_ratio=round(ms["peer"] / ms["ours"], 2),
        peak_mb=round(peak / 2**20, 2),
        peak_floats=round(peak / 4 / (batch * size), 2),
        peer_ms=round(ms["peer"], 2),
        peer_stopped=False,
        peer_same_value=same_value,
        M=size,
    )


def run_memory(
    batches: list[int], dims: list[int], sizes: list[int], *, done: Collection[Size], repeats: int, budget: float
) -> Iterator[Row]:
    """Time the losses with a memory at all sizes that hold a batch and are not in `done`. Yield one row for each."""
    cells = [
        (size, dim, batch, name)
        for size, dim, batch, name in product(sizes, dims, batches, WRAPPED)
        if batch <= size and (name, batch, dim, None, size) not in done
    ]
    for size, dim, batch, name in tqdm(cells, desc="cross-batch memory", unit="cell", disable=None):
        yield measure_memory(name, size, batch, dim, repeats=repeats, budget=budget)
