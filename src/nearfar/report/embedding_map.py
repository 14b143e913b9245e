"""The embedding map: samples placed in the plane by t-SNE and drawn as small images or marks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from torch import Tensor

from nearfar.data.manifest import Ints, Manifest
from nearfar.ops.geometry import unit
from nearfar.report.html import render
from nearfar.report.thumbnails import Thumbnails
from nearfar.report.tsne import tsne

WIDTH, HEIGHT, EDGE = 1000, 760, 34
MAX_LABELS = 24
# Eight colors that are readable on white, and on black if lightened. People with color blindness can tell them apart.
# They are based on the palette of Okabe and Ito.
INKS = ("#0068a8", "#c04f00", "#00805c", "#a8467f", "#8a6100", "#5a55c8", "#8c2f2f", "#4d5b66")
SHAPES = tuple(
    Markup(shape)
    for shape in (
        '<circle r="5.5"/>',
        '<path d="M-5 -5h10v10h-10z"/>',
        '<path d="M-6 5h12l-6 -11z"/>',
        '<path d="M0 -7l7 7l-7 7l-7 -7z"/>',
        '<path d="M-6 -5h12l-6 11z"/>',
        '<path d="M-2 -6h4v4h4v4h-4v4h-4v-4h-4v-4h4z"/>',
        '<path d="M0 -6.5l6.2 4.5l-2.4 7.2h-7.6l-2.4 -7.2z"/>',
    )
)


@dataclass(frozen=True)
class EmbeddingMap:
    """Positions of samples and proxies in the plane.

    Attributes:
        rows: Rows in the manifest of the N samples shown, [N].
        points: Positions of these samples, [N, 2].
        proxy_labels: The class of each of the P proxies shown, [P].
        proxy_points: Positions of the proxies, [P, 2].
    """

    rows: Ints
    points: NDArray[np.float64]
    proxy_labels: Ints
    proxy_points: NDArray[np.float64]


@dataclass(frozen=True)
class Mark:
    """A sample, a proxy or a class name on the map.

    Attributes:
        x: Horizontal position.
        y: Vertical position.
        code: Number of the class among the classes shown; it selects color and shape.
        name: Name of the class.
        source: Data URI of the image; None if there is no image.
    """

    x: float
    y: float
    code: int
    name: str
    source: str | None = None


def choose_rows(labels: Ints, *, points: int, classes: int, seed: int = 0) -> Ints:
    """Return the rows of the samples that the map shows, in ascending order.

    If there are at most `points` samples, all are shown. Otherwise up to `classes` random classes with two or more
    samples are chosen (any classes, if all have one sample). Each chosen class has at most `points` / (number of
    chosen classes) random samples on the map.

    >>> choose_rows(np.repeat(np.arange(50), 30), points=60, classes=3).size
    60
    """
    if len(labels) <= points:
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    present, sizes = np.unique(labels, return_counts=True)
    # a class with one sample does not show how well classes are separated
    several = present[sizes > 1] if (sizes > 1).any() else present
    chosen = rng.choice(several, min(classes, len(several)), replace=False)
    limit = max(1, points // len(chosen))
    parts = [rng.permutation(np.flatnonzero(labels == label))[:limit] for label in np.sort(chosen)]
    return np.sort(np.concatenate(parts))


def compute_map(
    data: Manifest, embeddings: Tensor, rows: Ints, *, proxies: Tensor | None = None, seed: int = 0
) -> EmbeddingMap:
    """Return positions of samples and proxies in the plane, by t-SNE of their normalized embeddings.

    Args:
        data: The N samples.
        embeddings: Embeddings of all samples, [N, d].
        rows: Rows of the samples to place.
        proxies: One or K proxies for each of the C classes, [C, d] or [C, K, d]. Proxies of classes without a sample in
            `rows` are left out.
        seed: Seed of t-SNE.
    """
    x = unit(embeddings.detach().float().cpu()[torch.from_numpy(rows)])
    proxy_labels = np.zeros(0, np.int64)
    if proxies is not None:
        by_class = proxies.detach().float().cpu().reshape(len(data.classes), -1, x.shape[1])
        shown = np.unique(data.labels[rows])
        proxy_labels = np.repeat(shown, by_class.shape[1])
        x = torch.cat([x, unit(by_class[torch.from_numpy(shown)].flatten(0, 1))])
    y = _fit_to_frame(tsne(x, seed=seed).double().numpy())
    return EmbeddingMap(rows, y[: len(rows)], proxy_labels, y[len(rows) :])


def draw_map(data: Manifest, layout: EmbeddingMap, thumbnails: Thumbnails) -> Markup:
    """Return the map as SVG. Samples without images are drawn as marks in 8 colors and 7 shapes."""
    shown, codes = np.unique(data.labels[layout.rows], return_inverse=True)
    samples = zip(layout.rows.tolist(), layout.points.tolist(), codes.tolist(), strict=True)
    code_of = {label: code for code, label in enumerate(shown.tolist())}
    proxies = zip(layout.proxy_labels.tolist(), layout.proxy_points.tolist(), strict=True)
    return render(
        "report/templates/map.svg",
        width=WIDTH,
        height=HEIGHT,
        classes=len(shown),
        kind=thumbnails.kind,
        shapes=SHAPES if thumbnails.kind == "text" else (),
        side=_image_side(len(layout.rows), thumbnails.kind),
        marks=[
            Mark(x, y, code, data.classes[shown[code]], thumbnails.encode_small(row, INKS[code % len(INKS)]))
            for row, (x, y), code in samples
        ],
        stars=[Mark(x, y, code_of[label], data.classes[label]) for label, (x, y) in proxies],
        labels=_place_labels([data.classes[label] for label in shown.tolist()], layout.points, codes),
    )


def _fit_to_frame(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotate the points, then stretch their bounding box to the frame.

    Of the rotations whose bounding box is wider than tall, the one with the smallest bounding box is used.
    """
    angles = np.radians(np.arange(0, 180, 5))
    axes = np.stack([np.cos(angles), np.sin(angles), -np.sin(angles), np.cos(angles)], axis=1).reshape(-1, 2, 2)
    spans = np.ptp(y @ axes.transpose(0, 2, 1), axis=1)
    horizontal = np.flatnonzero(spans[:, 0] >= spans[:, 1])
    y = y @ axes[horizontal[spans[horizontal].prod(1).argmin()]].T
    low, span = y.min(0), np.ptp(y, axis=0)
    share = np.where(span > 0, (y - low) / np.where(span > 0, span, 1.0), 0.5)
    fitted: NDArray[np.float64] = EDGE + share * np.array([WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE])
    return fitted


def _image_side(points: int, kind: str) -> float:
    """Return the side of an image on a map with this number of points, in the units of the SVG.

    The side is chosen so that all images together cover about 60% of the map, but it is at least 18 and at most 64. The
    side of a drawing is then enlarged by 20%.
    """
    side = float(np.sqrt(0.6 * WIDTH * HEIGHT / max(1, points)))
    return min(max(side, 18.0), 64.0) * (1.2 if kind == "drawings" else 1.0)


def _place_labels(names: list[str], points: NDArray[np.float64], codes: Ints) -> list[Mark]:
    """Place the names of the largest classes at the median position of their samples. Move overlapping names down."""
    largest = np.argsort(-np.bincount(codes), kind="stable")[:MAX_LABELS]
    boxes: list[tuple[float, float, float, str, int]] = []
    medians = {int(code): np.median(points[codes == code], axis=0) for code in largest}
    for code in sorted(medians, key=lambda code: float(medians[code][1])):
        name = _shorten(names[code])
        half = 5.9 * len(name) + 4
        x = float(np.clip(medians[code][0], half, WIDTH - half)) if 2 * half < WIDTH else WIDTH / 2
        y = float(medians[code][1])
        for other, above, reach, _, _ in boxes:
            if abs(x - other) < half + reach and y < above + 22:
                y = above + 22
        boxes.append((x, y, half, name, code))
        boxes.sort(key=lambda box: box[1])
    lowest = max((y for _, y, _, _, _ in boxes), default=0.0)
    lift = max(0.0, lowest - (HEIGHT - 8))
    return [Mark(x, y - lift, code, name) for x, y, _, name, code in boxes]


def _shorten(name: str, limit: int = 26) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"
