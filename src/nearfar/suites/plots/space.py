"""The embedding space in the plane, classes by color and marker, proxies as stars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nearfar.report.embedding_map import lay_out, map_rows
from nearfar.suites.line_plot import COLOURS
from nearfar.suites.plots.canvas import MARKERS, panels
from nearfar.suites.plots.trained import trained

NAMED = 12


def space(run: Path, *, split: str = "train", classes: int = 20, points: int = 800, seed: int = 0) -> Any:
    """t-SNE of up to `points` samples of `classes` classes by chance, and of their proxies where the run has some."""
    found = trained(run, split)
    rows = map_rows(found.data.labels, points=points, classes=classes, seed=seed)
    laid = lay_out(found.data, found.embeddings, rows, proxies=found.proxies, seed=seed)
    labels, inks = found.data.labels[rows], list(COLOURS.values())
    figure, (axes,) = panels(width=6.5, height=5.5)
    shown = np.unique(labels)
    for number, label in enumerate(shown.tolist()):
        ink, mine = inks[number % len(inks)], laid.places[labels == label]
        axes.scatter(*mine.T, s=10, color=ink, marker=MARKERS[number % len(MARKERS)], linewidths=0, alpha=0.7)
        stars = laid.star_places[laid.stars == label]
        axes.scatter(*stars.T, s=110, color=ink, marker="*", edgecolors="black", linewidths=0.8, zorder=3)
        if len(shown) <= NAMED:
            x, y = np.median(mine, axis=0)
            axes.annotate(found.data.classes[label], (x, y), ha="center", fontsize=8, zorder=4)
    axes.set(xticks=[], yticks=[])
    stars_told = ", proxies as stars" if len(laid.stars) else ""
    axes.set_title(f"{found.title}\n{len(rows)} samples of {len(shown)} classes{stars_told}")
    return figure
