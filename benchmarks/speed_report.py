"""The page of the speed benchmark: one row per measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.timing import machine
from nearfar.formatting import markdown_table


@dataclass(frozen=True)
class Row:
    """One measurement. `peer_ratio` is the peer's time divided by ours; a stopped peer counts as 60 seconds."""

    loss: str
    B: int
    d: int
    ms: float
    floor_ratio: float
    peer_ratio: float | None
    peak_mb: float
    peak_floats: float
    peer_ms: float | None
    peer_stopped: bool
    peer_same_value: bool | None
    C: int | None = None
    K: int | None = None


def geometric_mean(values: list[float]) -> float:
    """Compute exp(mean(log)); nan for an empty list."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def report(rows: list[Row], command: str) -> str:
    """Return the page docs/benchmarks/speed.md."""
    every, rows = rows, [r for r in rows if r.C is None]
    ratios = [r.peer_ratio for r in rows if r.peer_ratio is not None]
    parts = [
        "# Speed of the losses\n",
        f"Made by `{command}` on {machine()}.\n",
        "Forward and backward pass, best of several interleaved repeats. **floor** is the time divided by that of the "
        "three matrix products that a pair loss needs (it can be below 1: a batch against itself needs two of them). "
        "**peer** is the time of pytorch-metric-learning divided by ours; `>` marks a peer that was stopped at 8 GB or "
        "60 s and counts as 60 s; `~` marks a peer with another formula, where only the time is comparable. **floats** "
        "is the peak of allocated memory in units of B^2 floats.\n",
    ]
    if ratios:
        same = [r.peer_ratio for r in rows if r.peer_ratio is not None and r.peer_same_value is not False]
        parts.append(
            f"Compared with the peer: {geometric_mean(ratios):.1f}x faster in the geometric mean of {len(ratios)} "
            "cells "
            f"({geometric_mean(same):.1f}x over the {len(same)} with the same formula or a stopped peer), "
            f"{min(ratios):.2f}x in the worst case.\n"
        )
    for dim in sorted({r.d for r in rows}):
        batches = sorted({r.B for r in rows if r.d == dim})
        header = ["loss", *[f"B={b} ms | floor | peer | floats" for b in batches]]
        cells: dict[str, list[str]] = {}
        for r in rows:
            if r.d == dim:
                cells.setdefault(r.loss, []).append(cell(r))
        parts.append(f"## d = {dim}\n")
        parts.append(
            markdown_table(
                " | ".join(header).split(" | "), [[k, *" | ".join(v).split(" | ")] for k, v in cells.items()]
            )
        )
        parts.append("")
    proxied = [r for r in every if r.C is not None]
    if proxied:
        parts.append("## Proxy losses\n")
        parts.append(
            "The floor is the three products of a proxy loss, X P^T and the two of its gradient, with all C x K "
            "proxies. "
            "**floats** is the peak memory in units of the size of the proxies, C K d; their gradient takes 1 of it.\n"
        )
        header = ["loss", "B", "d", "C", "K", "ms", "floor", "peer", "floats"]
        body = [[r.loss, str(r.B), str(r.d), str(r.C), str(r.K), *cell(r).split(" | ")] for r in proxied]
        parts.append(markdown_table(header, body))
        parts.append("")
    return "\n".join(parts)


def cell(r: Row) -> str:
    if r.peer_ratio is None:
        rival = ""
    else:
        mark = ">" if r.peer_stopped else "~" if r.peer_same_value is False else ""
        rival = f"{mark}{r.peer_ratio:.1f}x"
    return f"{r.ms:.2f} | {r.floor_ratio:.2f} | {rival} | {r.peak_floats:.1f}"
