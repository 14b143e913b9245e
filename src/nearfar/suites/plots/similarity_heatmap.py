"""Heat maps of the cosine similarity of samples to proxies and to each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearfar.data.manifest import Ints
from nearfar.plotting import new_figure
from nearfar.suites.plots.trained_run import load_comparable_runs, name_panels


def draw_similarity(
    runs: Sequence[Path], *, split: str = "train", classes: int = 20, per_class: int = 3, seed: int = 0
) -> Any:
    """Draw the cosine similarity of random samples to each other, and to the proxies of their classes if there are any.

    For a single run, the panels are side by side. For several runs, each run has a column. All columns show the same
    samples.

    Args:
        runs: Run directories with the same data.
        split: Split to draw; proxies are drawn only with "train".
        classes: Number of random classes.
        per_class: Number of random samples of each class.
        seed: Seed for the random choice.
    """
    trained = load_comparable_runs(runs, split)
    chosen, rows = _choose_samples(trained[0].data.labels, classes=classes, per_class=per_class, seed=seed)
    names = ("proxies", "samples") if any(run.proxies is not None for run in trained) else ("samples",)
    about = f"{trained[0].source}: {len(rows)} samples of {len(chosen)} classes"
    if len(trained) == 1:
        figure, panels = new_figure(len(names), width=4.6, height=4.4)
        about = f"{trained[0].method}, {about}"
    else:
        figure, panels = new_figure(len(trained), rows=len(names), width=3.6, height=3.4)
        for axes, title in zip(panels, name_panels(trained), strict=False):  # the first row of panels
            axes.set_title(title)
    image = None
    for axes, (name, run) in zip(panels, product(names, trained), strict=True):
        samples = run.embeddings[torch.from_numpy(rows)]
        others: Tensor | None = samples
        if name == "proxies":
            others = None if run.proxies is None else run.proxies[torch.from_numpy(chosen)].flatten(0, 1)
        if others is None:
            axes.set_axis_off()
            continue
        image = axes.imshow(
            (samples @ others.T).numpy(), cmap="cividis", vmin=-1, vmax=1, interpolation="nearest", aspect="auto"
        )
        axes.set(xlabel=name, ylabel="samples", xticks=[], yticks=[])
    figure.colorbar(image, ax=panels, label="cosine")
    figure.suptitle(about)
    return figure


def _choose_samples(labels: Ints, *, classes: int, per_class: int, seed: int) -> tuple[Ints, Ints]:
    """Return at most `classes` random classes, sorted, and the rows of at most `per_class` random samples of each."""
    rng = np.random.default_rng(seed)
    present = np.unique(labels)
    chosen = np.sort(rng.choice(present, min(classes, len(present)), replace=False))
    rows = [np.sort(rng.permutation(np.flatnonzero(labels == c))[:per_class]) for c in chosen]
    return chosen, np.concatenate(rows)
