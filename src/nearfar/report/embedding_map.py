"""The embedding map: some classes laid out in the plane by t-SNE, drawn with their own pictures."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.data.manifest import Ints, Manifest
from nearfar.ops.geometry import unit
from nearfar.report.thumbnails import Thumbnails
from nearfar.report.tsne import tsne

WIDTH, HEIGHT, EDGE = 1000, 760, 34
LABELS = 24
# eight inks that read on white and, lightened, on black, apart for every kind of color vision (after Okabe and Ito)
INKS = ("#0068a8", "#c04f00", "#00805c", "#a8467f", "#8a6100", "#5a55c8", "#8c2f2f", "#4d5b66")
SHAPES = (
    '<circle r="5.5"/>',
    '<path d="M-5 -5h10v10h-10z"/>',
    '<path d="M-6 5h12l-6 -11z"/>',
    '<path d="M0 -7l7 7l-7 7l-7 -7z"/>',
    '<path d="M-6 -5h12l-6 11z"/>',
    '<path d="M-2 -6h4v4h4v4h-4v4h-4v-4h-4v-4h4z"/>',
    '<path d="M0 -6.5l6.2 4.5l-2.4 7.2h-7.6l-2.4 -7.2z"/>',
)
STAR = "M0 -13l3.6 8.1l8.8 .9l-6.6 5.9l1.9 8.7l-7.7 -4.5l-7.7 4.5l1.9 -8.7l-6.6 -5.9l8.8 -.9z"


@dataclass(frozen=True)
class Map:
    """Rows of the data and where they lie; `stars` are the classes of proxies and where those lie."""

    rows: Ints
    places: NDArray[np.float64]
    stars: Ints
    star_places: NDArray[np.float64]


def map_rows(labels: Ints, *, points: int, classes: int, seed: int = 0) -> Ints:
    """All rows where there are at most `points`; otherwise those of `classes` classes by chance.

    A class with more than points / classes rows is thinned to that many, by chance too. Rows ascend.

    >>> map_rows(np.repeat(np.arange(50), 30), points=60, classes=3).size
    60
    """
    if len(labels) <= points:
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    present, sizes = np.unique(labels, return_counts=True)
    # a class of one sample shows nothing about classes
    several = present[sizes > 1] if (sizes > 1).any() else present
    chosen = rng.choice(several, min(classes, len(several)), replace=False)
    most = max(1, points // len(chosen))
    parts = [rng.permutation(np.flatnonzero(labels == label))[:most] for label in np.sort(chosen)]
    return np.sort(np.concatenate(parts))


def lay_out(data: Manifest, embeddings: Tensor, rows: Ints, *, proxies: Tensor | None = None, seed: int = 0) -> Map:
    """t-SNE of unit rows, with the proxies [C, d] or [C, K, d] of the classes that are shown."""
    x = unit(embeddings.detach().float().cpu()[torch.from_numpy(rows)])
    stars = np.zeros(0, np.int64)
    if proxies is not None:
        each = proxies.detach().float().cpu().reshape(len(data.classes), -1, x.shape[1])
        shown = np.unique(data.labels[rows])
        stars = np.repeat(shown, each.shape[1])
        x = torch.cat([x, unit(each[torch.from_numpy(shown)].flatten(0, 1))])
    y = _fitted(tsne(x, seed=seed).double().numpy())
    return Map(rows, y[: len(rows)], stars, y[len(rows) :])


def map_svg(data: Manifest, laid: Map, pictures: Thumbnails) -> str:
    """The map as SVG: pictures where there are some, otherwise dots of eight colors and seven shapes."""
    labels = data.labels[laid.rows]
    shown, code = np.unique(labels, return_inverse=True)
    kind = pictures.look
    side = _side(len(laid.rows), kind)
    marks = []
    for row, (x, y), c in zip(laid.rows.tolist(), laid.places.tolist(), code.tolist(), strict=True):
        marks.append(_mark(pictures, row, x, y, c, side, escape(data.classes[data.labels[row]])))
    number = {int(label): c for c, label in enumerate(shown)}
    stars = [
        f'<path class="star c{number[label] % 8}" d="{STAR}" transform="translate({x:.1f} {y:.1f})">'
        f"<title>proxy of {escape(data.classes[label])}</title></path>"
        for label, (x, y) in zip(laid.stars.tolist(), laid.star_places.tolist(), strict=True)
    ]
    names = _names(data, laid, shown, code)
    shapes = "".join(f'<g id="m{i}">{shape}</g>' for i, shape in enumerate(SHAPES)) if kind == "words" else ""
    what = f"Map of {len(laid.rows)} samples of {len(shown)} classes; near each other where their embeddings are"
    return (
        f'<svg class="map" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{what}">'
        f'<defs>{shapes}</defs><g class="{kind}">{"".join(marks)}</g>{"".join(stars)}{names}</svg>'
    )


def _fitted(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turned so that its bounding box is smallest and lies on its longer side, and stretched to the map."""
    angles = np.radians(np.arange(0, 180, 5))
    axes = np.stack([np.cos(angles), np.sin(angles), -np.sin(angles), np.cos(angles)], axis=1).reshape(-1, 2, 2)
    spans = np.ptp(y @ axes.transpose(0, 2, 1), axis=1)
    lying = np.flatnonzero(spans[:, 0] >= spans[:, 1])
    y = y @ axes[lying[spans[lying].prod(1).argmin()]].T
    low, span = y.min(0), np.ptp(y, axis=0)
    share = np.where(span > 0, (y - low) / np.where(span > 0, span, 1.0), 0.5)
    fitted: NDArray[np.float64] = EDGE + share * np.array([WIDTH - 2 * EDGE, HEIGHT - 2 * EDGE])
    return fitted


def _side(points: int, kind: str) -> float:
    """Pictures cover about three fifths of the map, within limits; drawings are transparent and may be larger."""
    side = float(np.sqrt(0.6 * WIDTH * HEIGHT / max(1, points)))
    return min(max(side, 18.0), 64.0) * (1.2 if kind == "drawings" else 1.0)


def _mark(pictures: Thumbnails, row: int, x: float, y: float, code: int, side: float, name: str) -> str:
    source = pictures.small(row, INKS[code % 8])
    title = f"<title>{name}</title>"
    if source is None:
        if pictures.look == "words":
            return f'<use href="#m{code % len(SHAPES)}" class="c{code % 8}" x="{x:.1f}" y="{y:.1f}">{title}</use>'
        return f'<circle class="c{code % 8}" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>'
    box = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}"'
    if pictures.look == "drawings":
        return f'<image href="{source}" {box}>{title}</image>'
    frame = f'<rect class="c{code % 8}" {box}/>'
    return f'<g><image href="{source}" {box} preserveAspectRatio="xMidYMid slice"/>{frame}{title}</g>'


def _names(data: Manifest, laid: Map, shown: Ints, code: Ints) -> str:
    """The names of the largest classes at their medians, moved apart where they would overlap."""
    largest = np.argsort(-np.bincount(code), kind="stable")[:LABELS]
    boxes: list[tuple[float, float, float, str, int]] = []
    middles = {int(c): np.median(laid.places[code == c], axis=0) for c in largest}
    for c in sorted(middles, key=lambda c: float(middles[c][1])):
        name = _clipped(data.classes[int(shown[c])])
        half = 5.9 * len(name) + 4
        x = float(np.clip(middles[c][0], half, WIDTH - half)) if 2 * half < WIDTH else WIDTH / 2
        y = float(middles[c][1])
        for other, above, reach, _, _ in boxes:
            if abs(x - other) < half + reach and y < above + 22:
                y = above + 22
        boxes.append((x, y, half, name, c))
        boxes.sort(key=lambda box: box[1])
    lowest = max((y for _, y, _, _, _ in boxes), default=0.0)
    lift = max(0.0, lowest - (HEIGHT - 8))
    return "".join(
        f'<text class="name c{c % 8}" x="{x:.0f}" y="{y - lift:.0f}" text-anchor="middle">{escape(name)}</text>'
        for x, y, _, name, c in boxes
    )


def _clipped(name: str, most: int = 26) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
