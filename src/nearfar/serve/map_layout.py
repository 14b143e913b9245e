"""The embedding map of many samples: t-SNE of some, the others between them, then forces along neighbors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.ops.geometry import unit
from nearfar.report.tsne import tsne

LANDMARKS, NEAREST, BLOCK = 2000, 6, 1024
# of the graph: its neighbors of a row, and the principal components that they are found in
DEGREE, COMPONENTS = 12, 64
STEPS, REPELLED = 100, 8


def lay_out_plane(vectors: Tensor, *, landmarks: int = LANDMARKS, seed: int = 0) -> Tensor:
    """Places [N, 2] float32 of rows [N, d], within -1..1, its longer side across; the same for the same seed.

    Rows are compared by direction from their mean. Up to `landmarks` rows: t-SNE of all. More, because t-SNE is
    quadratic: t-SNE of so many by chance, every row at the mean of its nearest among them, then `relaxed`.
    """
    x = directions(vectors)
    if len(x) <= landmarks:
        return _framed(tsne(x, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[:landmarks].sort().values
    start = _framed(between(x, x[chosen], tsne(x[chosen], seed=seed)))
    # about three rows to a unit of length, in which the forces are measured
    return _framed(relaxed(start * math.sqrt(len(x)) / 3, nearest_rows(x), generator))


def directions(vectors: Tensor) -> Tensor:
    """Unit rows as seen from their mean, which spreads embeddings that all point one way."""
    x = vectors.detach().float().cpu()
    return unit(x - x.mean(0)) if len(x) > 1 else unit(x)


def between(x: Tensor, some: Tensor, places: Tensor) -> Tensor:
    """Each unit row of x at the mean of the places of its six nearest rows of `some`, weighted by 1 / distance^4."""
    parts = []
    for block in torch.split(x, BLOCK):
        cosine, near = (block @ some.T).topk(min(NEAREST, len(some)), dim=1)
        weight = (1 - cosine).clamp_min(1e-6).pow(-2)
        parts.append((weight[:, :, None] * places[near]).sum(1) / weight.sum(1, keepdim=True))
    return torch.cat(parts)


def nearest_rows(x: Tensor, *, degree: int = DEGREE, components: int = COMPONENTS) -> Tensor:
    """The nearest other rows [N, degree] of unit rows, by cosine in their first principal components."""
    z = unit(x @ torch.linalg.eigh(x.T @ x)[1][:, -components:])
    found = []
    for start in range(0, len(z), BLOCK):
        similarity = z[start : start + BLOCK] @ z.T
        line = torch.arange(len(similarity))
        similarity[line, line + start] = -torch.inf
        found.append(similarity.topk(min(degree, len(z) - 1), dim=1).indices)
    return torch.cat(found)


def relaxed(y: Tensor, near: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> Tensor:
    """Places after steps along

        mean over neighbors j of 2 (y_j - y_i) / (1 + r^2)  +  sum over a few rows j by chance of
        2 (y_i - y_j) / ((0.01 + r^2) (1 + r^2)),                            r = ||y_i - y_j||

    each coordinate within 4, times a rate that falls from 1 to 0. The forces are LargeVis' (Tang et al., WWW 2016);
    all rows at once, the mean in place of single edges and the numbers are ours.
    """
    back = near.flatten()
    degree = (torch.bincount(back, minlength=len(y)) + near.shape[1])[:, None]
    for step in range(steps):
        along = y[near] - y[:, None]
        pull = along * (2 / (1 + along.square().sum(2)))[:, :, None]
        attracted = pull.sum(1).index_add_(0, back, -pull.flatten(0, 1)) / degree
        away = y[:, None] - y[torch.randint(len(y), (len(y), REPELLED), generator=generator)]
        square = away.square().sum(2)
        push = (away * (2 / ((0.01 + square) * (1 + square)))[:, :, None]).clamp_(-4, 4).sum(1)
        y = y + (1 - step / steps) * (attracted + push).clamp_(-4, 4)
    return y


def _framed(y: Tensor) -> Tensor:
    """Turned so that the longest direction lies across, centered, the farthest coordinate at 1."""
    y = y - y.mean(0)
    if len(y) > 2:
        y = y @ torch.linalg.eigh(y.T @ y)[1].flip(1)
    y = y - (y.amin(0) + y.amax(0)) / 2
    framed: Tensor = y / y.abs().max().clamp_min(1e-12)
    return framed
