"""Heat maps of cosines between samples and proxies and among samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.plotting import new_figure
from nearfar.suites.plots.trained_run import load_trained_run


def draw_similarity(run: Path, *, split: str = "train", classes: int = 20, per_class: int = 3, seed: int = 0) -> Any:
    """Draw the cosines of `per_class` random samples of each of `classes` random classes, on a scale from -1 to 1."""
    trained = load_trained_run(run, split)
    rng = np.random.default_rng(seed)
    labels = trained.data.labels
    present = np.unique(labels)
    chosen = np.sort(rng.choice(present, min(classes, len(present)), replace=False))
    rows = np.concatenate([np.sort(rng.permutation(np.flatnonzero(labels == c))[:per_class]) for c in chosen])
    samples = trained.embeddings[torch.from_numpy(rows)]
    parts = {"samples": samples}
    if trained.proxies is not None:
        parts = {"proxies": trained.proxies[torch.from_numpy(chosen)].flatten(0, 1), **parts}
    figure, panels = new_figure(len(parts), width=4.6, height=4.4)
    for axes, (name, others) in zip(panels, parts.items(), strict=True):
        image = axes.imshow(
            (samples @ others.T).numpy(), cmap="cividis", vmin=-1, vmax=1, interpolation="nearest", aspect="auto"
        )
        axes.set(xlabel=name, ylabel="samples", xticks=[], yticks=[])
    figure.colorbar(image, ax=panels, label="cosine")
    figure.suptitle(f"{trained.title}: {len(rows)} samples of {len(chosen)} classes")
    return figure
