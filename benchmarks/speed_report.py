"""The report of the speed benchmark."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.timing import machine
from nearfar.formatting import markdown_table


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        loss: Label of the loss.
        B: Batch size.
        d: Embedding dimension.
        ms: Milliseconds of one forward and backward pass.
        floor_ratio: This time divided by that of the matrix products alone.
        peer_ratio: Time of pytorch-metric-learning (the peer) divided by ours; None if it was not measured.
        peak_mb: Peak memory in MB.
        peak_floats: Peak memory in floats, divided by B^2, or by C K d for a proxy loss.
        peer_ms: Milliseconds of the peer; 60,000 if it was stopped.
        peer_stopped: Whether the peer exceeded the limits on memory or time.
        peer_same_value: Whether both losses have the same value; None if they were not compared.
        C: Number of classes; None for a pair loss.
        K: Number of proxies per class; None for a pair loss.
    """

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
    """Return the geometric mean, or nan for an empty list."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def report(rows: list[Row], command: str) -> str:
    """Return the text of docs/benchmarks/speed.md."""
    every, rows = rows, [r for r in rows if r.C is None]
    ratios = [r.peer_ratio for r in rows if r.peer_ratio is not None]
    parts = [
        "# Speed of the losses\n",
        f"Made by `{command}` on {machine()}.\n",
        "Time of a forward and backward pass for B embeddings of dimension d, the best of several interleaved repeats. "
        "**floor** is this time divided by that of the three matrix products that a pair loss needs (it can be below "
        "1, because two products suffice if a batch is compared with itself). **peer** is the time of "
        "pytorch-metric-learning divided by ours: `>` marks a peer that was stopped at 8 GB or 60 s and counts as "
        "60 s; `~` marks a peer with a different formula, where only the time is comparable. **floats** is the peak of "
        "allocated memory in units of B^2 floats.\n",
    ]
    if ratios:
        same = [r.peer_ratio for r in rows if r.peer_ratio is not None and r.peer_same_value is not False]
        parts.append(
            f"nearfar is {geometric_mean(ratios):.1f}x as fast as the peer in the geometric mean of {len(ratios)} "
            f"measurements ({geometric_mean(same):.1f}x over the {len(same)} with the same formula or a stopped peer), "
            f"and {min(ratios):.2f}x as fast in the worst case.\n"
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
            "Here the floor is the three matrix products of a proxy loss with K proxies P for each of C classes: X P^T "
            "and two products for its gradient. **floats** is the peak memory in units of C K d floats, the size of "
            "the proxies; the gradient of the proxies alone takes 1 unit.\n"
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
