"""The embedding space in the plane: classes by color and marker, proxies as stars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nearfar.plotting import COLORS, MARKERS, new_figure
from nearfar.report.embedding_map import choose_rows, compute_map
from nearfar.suites.plots.trained_run import load_trained_run

MAX_LABELED = 12


def draw_embedding_space(
    run: Path, *, split: str = "train", classes: int = 20, points: int = 800, seed: int = 0
) -> Any:
    """Draw t-SNE of up to `points` samples of `classes` random classes, and of their proxies if the run has any."""
    trained = load_trained_run(run, split)
    rows = choose_rows(trained.data.labels, points=points, classes=classes, seed=seed)
    layout = compute_map(trained.data, trained.embeddings, rows, proxies=trained.proxies, seed=seed)
    labels, colors = trained.data.labels[rows], list(COLORS.values())
    figure, (axes,) = new_figure(width=6.5, height=5.5)
    shown = np.unique(labels)
    for number, label in enumerate(shown.tolist()):
        color, samples = colors[number % len(colors)], layout.points[labels == label]
        axes.scatter(*samples.T, s=10, color=color, marker=MARKERS[number % len(MARKERS)], linewidths=0, alpha=0.7)
        stars = layout.proxy_points[layout.proxy_labels == label]
        axes.scatter(*stars.T, s=110, color=color, marker="*", edgecolors="black", linewidths=0.8, zorder=3)
        if len(shown) <= MAX_LABELED:
            x, y = np.median(samples, axis=0)
            axes.annotate(trained.data.classes[label], (x, y), ha="center", fontsize=8, zorder=4)
    axes.set(xticks=[], yticks=[])
    note = ", proxies as stars" if len(layout.proxy_labels) else ""
    axes.set_title(f"{trained.title}\n{len(rows)} samples of {len(shown)} classes{note}")
    return figure
