"""The curves of Proxy-ISA's penalties (Li et al., arXiv 2211.10382, Fig. 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nearfar.errors import NearfarError
from nearfar.losses import create
from nearfar.losses.proxy_isa import ProxyISALoss, progress
from nearfar.suites.line_plot import COLOURS
from nearfar.suites.plots.canvas import panels
from nearfar.training import Run


def decay(run: Path) -> Any:
    """sigma, nu and 1 / max(1, E) of a Proxy-ISA run against n, the samples of a class that were counted, to 10 V."""
    options = dict(Run(run).config.loss)
    if options.pop("name") != "proxy-isa":
        raise NearfarError(
            f"{run}: picture decay is of a proxy-isa run, this one has the loss {Run(run).config.loss['name']}"
        )
    loss = create("proxy-isa", classes=1, dim=1, **options)
    assert isinstance(loss, ProxyISALoss)
    seen = torch.arange(int(10 * loss.volume) + 1)
    now = progress(
        seen,
        torch.ones(len(seen)),
        volume=loss.volume,
        sensitivity=loss.sensitivity,
        margin=loss.margin,
        tau=loss.tau,
    )
    curves = {"sigma": now.sigma, "nu": now.nu, "1 / max(1, E)": 1 / now.effective.clamp_min(1)}
    figure, (axes,) = panels()
    for (name, values), ink, dash in zip(curves.items(), COLOURS.values(), ("-", "--", ":"), strict=False):
        axes.plot(seen, values, dash, color=ink, label=name)
    axes.set(xlabel="n, samples of a class so far", ylabel="penalty", ylim=(0, 1.05))
    axes.set_title(f"Proxy-ISA, V = {loss.volume:g}, tau = {loss.tau:g}")
    axes.legend()
    return figure
