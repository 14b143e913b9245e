"""The embedding space in the plane, classes by color and marker, proxies as stars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nearfar.report.embedding_map import choose_rows, compute_map
from nearfar.suites.line_plot import COLOURS
from nearfar.suites.plots.canvas import MARKERS, panels
from nearfar.suites.plots.trained import trained

NAMED = 12


def space(run: Path, *, split: str = "train", classes: int = 20, points: int = 800, seed: int = 0) -> Any:
    """t-SNE of up to `points` samples of `classes` classes by chance, and of their proxies where the run has some."""
    found = trained(run, split)
    rows = choose_rows(found.data.labels, points=points, classes=classes, seed=seed)
    laid = compute_map(found.data, found.embeddings, rows, proxies=found.proxies, seed=seed)
    labels, inks = found.data.labels[rows], list(COLOURS.values())
    figure, (axes,) = panels(width=6.5, height=5.5)
    shown = np.unique(labels)
    for number, label in enumerate(shown.tolist()):
        ink, mine = inks[number % len(inks)], laid.points[labels == label]
        axes.scatter(*mine.T, s=10, color=ink, marker=MARKERS[number % len(MARKERS)], linewidths=0, alpha=0.7)
        stars = laid.proxy_points[laid.proxy_labels == label]
        axes.scatter(*stars.T, s=110, color=ink, marker="*", edgecolors="black", linewidths=0.8, zorder=3)
        if len(shown) <= NAMED:
            x, y = np.median(mine, axis=0)
            axes.annotate(found.data.classes[label], (x, y), ha="center", fontsize=8, zorder=4)
    axes.set(xticks=[], yticks=[])
    stars_told = ", proxies as stars" if len(laid.proxy_labels) else ""
    axes.set_title(f"{found.title}\n{len(rows)} samples of {len(shown)} classes{stars_told}")
    return figure
