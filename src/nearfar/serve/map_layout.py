"""The layout of the embedding map: t-SNE, extended to many samples by forces along nearest neighbors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.ops.geometry import unit
from nearfar.report.tsne import tsne

LANDMARKS, NEAREST, BLOCK = 2000, 6, 1024
# The number of neighbors of a sample, and the number of principal components in which they are searched.
DEGREE, COMPONENTS = 12, 64
STEPS, REPELLED = 100, 8


def lay_out_map(vectors: Tensor, *, landmarks: int = LANDMARKS, seed: int = 0) -> Tensor:
    """Return positions [N, 2] of vectors [N, d] in -1..1, with the longest extent along x.

    Vectors are compared by their direction from the mean. Up to `landmarks` vectors are placed by t-SNE. Because t-SNE
    takes quadratic time, a larger set is placed in three steps: t-SNE places `landmarks` random vectors, every vector
    starts at the mean of its nearest landmarks, and `relax` moves all of them. The result depends only on the seed.
    """
    x = center_directions(vectors)
    if len(x) <= landmarks:
        return _fit_frame(tsne(x, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[:landmarks].sort().values
    start = _fit_frame(interpolate(x, x[chosen], tsne(x[chosen], seed=seed)))
    # The forces have a fixed range: scale to about three points per unit of length.
    return _fit_frame(relax(start * math.sqrt(len(x)) / 3, find_neighbors(x), generator))


def center_directions(vectors: Tensor) -> Tensor:
    """Return unit vectors from the mean, which spreads embeddings that all point in one direction."""
    x = vectors.detach().float().cpu()
    return unit(x - x.mean(0)) if len(x) > 1 else unit(x)


def interpolate(x: Tensor, landmarks: Tensor, positions: Tensor) -> Tensor:
    """Place each unit vector at the mean position of its six nearest landmarks, weighted by 1 / distance^4."""
    parts = []
    for block in torch.split(x, BLOCK):
        cosine, near = (block @ landmarks.T).topk(min(NEAREST, len(landmarks)), dim=1)
        weight = (1 - cosine).clamp_min(1e-6).pow(-2)
        parts.append((weight[:, :, None] * positions[near]).sum(1) / weight.sum(1, keepdim=True))
    return torch.cat(parts)


def find_neighbors(x: Tensor, *, degree: int = DEGREE, components: int = COMPONENTS) -> Tensor:
    """Return the nearest other vectors [N, degree] by cosine in the first principal components of unit vectors."""
    z = unit(x @ torch.linalg.eigh(x.T @ x)[1][:, -components:])
    neighbors = []
    for start in range(0, len(z), BLOCK):
        similarity = z[start : start + BLOCK] @ z.T
        line = torch.arange(len(similarity))
        similarity[line, line + start] = -torch.inf
        neighbors.append(similarity.topk(min(degree, len(z) - 1), dim=1).indices)
    return torch.cat(neighbors)


def relax(y: Tensor, neighbors: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> Tensor:
    """Return positions after steps along

        mean over neighbors j of 2 (y_j - y_i) / (1 + r^2)  +  sum over a few random j of
        2 (y_i - y_j) / ((0.01 + r^2) (1 + r^2)),                            r = ||y_i - y_j||

    with each coordinate limited to 4, times a rate that falls from 1 to 0. The forces are those of LargeVis (Tang et
    al., WWW 2016). Moving all points at once, the mean instead of single edges, and the numbers are our choice.
    """
    targets = neighbors.flatten()
    degree = (torch.bincount(targets, minlength=len(y)) + neighbors.shape[1])[:, None]
    for step in range(steps):
        along = y[neighbors] - y[:, None]
        pull = along * (2 / (1 + along.square().sum(2)))[:, :, None]
        attraction = pull.sum(1).index_add_(0, targets, -pull.flatten(0, 1)) / degree
        away = y[:, None] - y[torch.randint(len(y), (len(y), REPELLED), generator=generator)]
        square = away.square().sum(2)
        repulsion = (away * (2 / ((0.01 + square) * (1 + square)))[:, :, None]).clamp_(-4, 4).sum(1)
        y = y + (1 - step / steps) * (attraction + repulsion).clamp_(-4, 4)
    return y


def _fit_frame(y: Tensor) -> Tensor:
    """Rotate the longest extent to x, center, and scale the largest coordinate to 1."""
    y = y - y.mean(0)
    if len(y) > 2:
        y = y @ torch.linalg.eigh(y.T @ y)[1].flip(1)
    y = y - (y.amin(0) + y.amax(0)) / 2
    fitted: Tensor = y / y.abs().max().clamp_min(1e-12)
    return fitted
