"""Speed of the proxy losses, for example for 100 classes (as in CUB) and 11,318 classes (as in SOP)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.peers import counterpart
from benchmarks.speed_report import Row, Size
from benchmarks.timing import best_ms, peak_bytes, step, step_clock
from nearfar.losses import create
from nearfar.losses.proxy_isa import ProxyISALoss

SINGLE_PROXY = (
    *("arcface", "cosface", "large-margin-softmax", "normalized-softmax", "p2sgrad"),
    *("proxy-anchor", "proxy-isa", "proxy-nca", "sphereface"),
)
MULTI_PROXY = ("mpa", "mpa-ap", "mpa-dw", "soft-triple", "subcenter-arcface")
PROXY_LOSSES = sorted(SINGLE_PROXY + MULTI_PROXY)
CLASSES = (100, 1000, 11318)
PROXIES = 2  # proxies per class of losses with several proxies


def make(label: str, classes: int, dim: int, k: int) -> nn.Module:
    """Create a loss, with `k` proxies per class if it supports several. For Proxy-ISA, memory and filter are active."""
    if label in MULTI_PROXY:
        # measure soft-triple without its regularizer: in pytorch-metric-learning, the regularizer compares all pairs of
        # proxies, even those of different classes
        options: dict[str, Any] = {"tau": 0.0} if label == "soft-triple" else {}
        return create(label, classes=classes, dim=dim, proxies_per_class=k, **options)
    loss = create(label, classes=classes, dim=dim)
    if isinstance(loss, ProxyISALoss):
        loss.start_epoch(3)
    return loss


def proxy_floor(x: Tensor, proxies: int) -> Callable[[], None]:
    """Return a function that computes the three matrix products of a proxy loss: S = X P^T, G P and G^T X."""
    x = x.detach()
    p, g = torch.randn(proxies, x.shape[1]), torch.randn(len(x), proxies)

    def call() -> None:
        _ = x @ p.T, g @ p, g.T @ x

    return call


def measure_proxy(
    label: str, batch: int, dim: int, classes: int, k: int, *, peers: bool, repeats: int, budget: float
) -> Row:
    """Time one proxy loss at one size."""
    k = 1 if label in SINGLE_PROXY else k
    loss = make(label, classes, dim, k)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, dim, generator=generator, requires_grad=True)
    y = torch.randint(classes, (batch,), generator=generator)
    ours = step(loss, x, y)
    candidates: dict[str, Callable[[], object]] = {"floor": proxy_floor(x, classes * k), "ours": ours}
    rival = counterpart(loss) if peers else None
    if rival is not None:
        candidates["peer"] = step(rival, x, y)
    ms = best_ms(candidates, repeats=repeats, budget=budget, clock=step_clock())
    peak, peer_ms = peak_bytes(ours), ms.get("peer")
    return Row(
        loss=label,
        B=batch,
        d=dim,
        ms=round(ms["ours"], 3),
        floor_ratio=round(ms["ours"] / ms["floor"], 3),
        peer_ratio=None if peer_ms is None else round(peer_ms / ms["ours"], 2),
        peak_mb=round(peak / 2**20, 2),
        peak_floats=round(peak / 4 / (classes * k * dim), 2),
        peer_ms=None if peer_ms is None else round(peer_ms, 2),
        peer_stopped=False,
        peer_same_value=None,
        C=classes,
        K=k,
    )


def run_proxies(
    labels: list[str],
    batches: list[int],
    dims: list[int],
    classes: list[int],
    *,
    done: Collection[Size],
    peers: bool,
    repeats: int,
    budget: float,
) -> Iterator[Row]:
    """Time the proxy losses at all sizes that are not in `done`, and yield one row per measurement."""
    cells = [
        (c, d, b, label)
        for c, d, b, label in product(classes, dims, batches, labels)
        if (label, b, d, c, None) not in done
    ]
    for c, dim, batch, label in tqdm(cells, desc="proxy losses", unit="cell", disable=None):
        yield measure_proxy(label, batch, dim, c, PROXIES, peers=peers, repeats=repeats, budget=budget)
