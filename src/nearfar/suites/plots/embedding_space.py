"""A t-SNE map of the embeddings: a color and marker for each class, proxies as stars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.manifest import Ints
from nearfar.plotting import COLORS, MARKERS, new_figure
from nearfar.report.embedding_map import EmbeddingMap, choose_rows, compute_map
from nearfar.suites.plots.trained_run import TrainedRun, load_comparable_runs, name_panels

MAX_LABELED = 12


def draw_embedding_space(
    runs: Sequence[Path], *, split: str = "train", classes: int = 20, points: int = 800, seed: int = 0
) -> Any:
    """Draw a t-SNE map of the embeddings of each run. If the run has proxies, those of the drawn classes are added.

    All panels show the same samples, and a class has the same color and marker in all panels. Each panel is a separate
    t-SNE, so positions in different panels cannot be compared.

    Args:
        runs: Run directories with the same data; each gets a panel.
        split: Split to draw; proxies are drawn only with "train".
        classes: Number of random classes to draw if the split has more than `points` samples.
        points: Maximum number of samples.
        seed: Seed for the random choice and for t-SNE.
    """
    trained = load_comparable_runs(runs, split)
    rows = choose_rows(trained[0].data.labels, points=points, classes=classes, seed=seed)
    layouts = [compute_map(run.data, run.embeddings, rows, proxies=run.proxies, seed=seed) for run in trained]
    note = ", proxies as stars" if any(len(layout.proxy_labels) for layout in layouts) else ""
    shown = len(np.unique(trained[0].data.labels[rows]))
    about = f"{len(rows)} samples of {shown} classes{note}"
    is_single = len(trained) == 1
    figure, panels = new_figure(len(trained), width=6.5 if is_single else 4.6, height=5.5 if is_single else 4.6)
    for axes, run, layout, title in zip(panels, trained, layouts, name_panels(trained), strict=True):
        _draw_panel(axes, run, layout, rows)
        axes.set_title(f"{title}, {run.source}\n{about}" if is_single else title)
    if not is_single:
        figure.suptitle(f"{trained[0].source}: {about}")
    return figure


def _draw_panel(axes: Any, run: TrainedRun, layout: EmbeddingMap, rows: Ints) -> None:
    labels, colors = run.data.labels[rows], list(COLORS.values())
    shown = np.unique(labels)
    for number, label in enumerate(shown.tolist()):
        color, samples = colors[number % len(colors)], layout.points[labels == label]
        axes.scatter(*samples.T, s=10, color=color, marker=MARKERS[number % len(MARKERS)], linewidths=0, alpha=0.7)
        stars = layout.proxy_points[layout.proxy_labels == label]
        axes.scatter(*stars.T, s=110, color=color, marker="*", edgecolors="black", linewidths=0.8, zorder=3)
        if len(shown) <= MAX_LABELED:
            x, y = np.median(samples, axis=0)
            axes.annotate(run.data.classes[label], (x, y), ha="center", fontsize=8, zorder=4)
    axes.set(xticks=[], yticks=[])
