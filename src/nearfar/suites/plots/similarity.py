"""Heat maps of cosines: some samples with proxies, and with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearfar.suites.plots.canvas import panels
from nearfar.suites.plots.trained import trained


def similarity(run: Path, *, split: str = "train", classes: int = 20, per_class: int = 3, seed: int = 0) -> Any:
    """Cosines of `per_class` samples of each of `classes` classes by chance, from -1 to 1 in the colors of cividis."""
    found = trained(run, split)
    rng = np.random.default_rng(seed)
    labels = found.data.labels
    present = np.unique(labels)
    chosen = np.sort(rng.choice(present, min(classes, len(present)), replace=False))
    rows = np.concatenate([np.sort(rng.permutation(np.flatnonzero(labels == c))[:per_class]) for c in chosen])
    samples = found.embeddings[torch.from_numpy(rows)]
    parts = {"samples": samples}
    if found.proxies is not None:
        parts = {"proxies": found.proxies[torch.from_numpy(chosen)].flatten(0, 1), **parts}
    figure, every = panels(len(parts), width=4.6, height=4.4)
    for axes, (name, others) in zip(every, parts.items(), strict=True):
        image = axes.imshow(
            (samples @ others.T).numpy(), cmap="cividis", vmin=-1, vmax=1, interpolation="nearest", aspect="auto"
        )
        axes.set(xlabel=name, ylabel="samples", xticks=[], yticks=[])
    figure.colorbar(image, ax=every, label="cosine")
    figure.suptitle(f"{found.title}: {len(rows)} samples of {len(chosen)} classes")
    return figure
