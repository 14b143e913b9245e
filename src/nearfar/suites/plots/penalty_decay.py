"""Curves of Proxy-ISA's penalties (Li et al., arXiv 2211.10382, Fig. 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nearfar.errors import NearfarError
from nearfar.losses import create
from nearfar.losses.proxy_isa import ProxyISALoss, progress
from nearfar.plotting import COLORS, new_figure
from nearfar.training import Run


def draw_penalty_decay(run: Path) -> Any:
    """Draw the penalties sigma, nu and 1 / max(1, E) of a Proxy-ISA run.

    The x axis is n, the number of samples of a class seen so far, from 0 to 10 V. V is the run's loss.volume, and E is
    the effective number of samples (see `nearfar.losses.proxy_isa.progress`).
    """
    options = dict(Run(run).config.loss)
    if options.pop("name") != "proxy-isa":
        raise NearfarError(
            f"{run}: plot decay needs a run with the loss proxy-isa, but this run has {Run(run).config.loss['name']}"
        )
    loss = create("proxy-isa", classes=1, dim=1, **options)
    assert isinstance(loss, ProxyISALoss)
    seen = torch.arange(int(10 * loss.volume) + 1)
    penalties = progress(
        seen,
        torch.ones(len(seen)),
        volume=loss.volume,
        sensitivity=loss.sensitivity,
        margin=loss.margin,
        tau=loss.tau,
    )
    curves = {"sigma": penalties.sigma, "nu": penalties.nu, "1 / max(1, E)": 1 / penalties.effective.clamp_min(1)}
    figure, (axes,) = new_figure()
    for (name, values), color, dash in zip(curves.items(), COLORS.values(), ("-", "--", ":"), strict=False):
        axes.plot(seen, values, dash, color=color, label=name)
    axes.set(xlabel="n, samples seen of a class", ylabel="penalty", ylim=(0, 1.05))
    axes.set_title(f"Proxy-ISA, V = {loss.volume:g}, tau = {loss.tau:g}")
    axes.legend()
    return figure
