"""The layout of the embedding map: t-SNE, extended to many samples by forces between nearest neighbors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.ops.geometry import unit
from nearfar.report.tsne import tsne

LANDMARKS, NEAREST, BLOCK = 2000, 6, 1024
# The number of neighbors per sample, and the number of principal components that are used to find them.
DEGREE, COMPONENTS = 12, 64
STEPS, REPELLED = 100, 8


def lay_out_map(vectors: Tensor, *, landmarks: int = LANDMARKS, seed: int = 0) -> Tensor:
    """Return positions [N, 2] for vectors [N, d]. Coordinates are in -1..1, and the longest extent is along x.

    Vectors are compared by their direction from the mean of all vectors. If there are at most `landmarks` vectors,
    t-SNE places them all. Because t-SNE takes quadratic time, a larger set is placed in three steps: t-SNE places
    `landmarks` random vectors, every vector starts at a weighted mean position of its nearest landmarks, and `relax`
    moves all positions. The same vectors and seed always give the same positions.
    """
    x = center_directions(vectors)
    if len(x) <= landmarks:
        return _fit_frame(tsne(x, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(x), generator=generator)[:landmarks].sort().values
    start = _fit_frame(interpolate(x, x[chosen], tsne(x[chosen], seed=seed)))
    # The forces of `relax` act over a distance of about 1. The scale keeps the density of points independent of N, so
    # that this distance always contains a similar number of points.
    return _fit_frame(relax(start * math.sqrt(len(x)) / 3, find_neighbors(x), generator))


def center_directions(vectors: Tensor) -> Tensor:
    """Subtract the mean and normalize to unit length. This spreads embeddings that all point in a similar direction."""
    x = vectors.detach().float().cpu()
    return unit(x - x.mean(0)) if len(x) > 1 else unit(x)


def interpolate(x: Tensor, landmarks: Tensor, positions: Tensor) -> Tensor:
    """Return a position [N, 2] for each unit vector: the mean position of its six nearest landmarks.

    The mean is weighted by 1 / distance^4.

    Args:
        x: Unit vectors [N, d].
        landmarks: Unit vectors [L, d] whose positions are known.
        positions: Positions of the landmarks [L, 2].
    """
    parts = []
    for block in torch.split(x, BLOCK):
        cosine, near = (block @ landmarks.T).topk(min(NEAREST, len(landmarks)), dim=1)
        weight = (1 - cosine).clamp_min(1e-6).pow(-2)
        parts.append((weight[:, :, None] * positions[near]).sum(1) / weight.sum(1, keepdim=True))
    return torch.cat(parts)


def find_neighbors(x: Tensor, *, degree: int = DEGREE, components: int = COMPONENTS) -> Tensor:
    """Return the indices [N, degree] of the nearest other vectors of each unit vector.

    The vectors are compared by cosine after projection to their first principal components.
    """
    z = unit(x @ torch.linalg.eigh(x.T @ x)[1][:, -components:])
    neighbors = []
    for start in range(0, len(z), BLOCK):
        similarity = z[start : start + BLOCK] @ z.T
        line = torch.arange(len(similarity))
        similarity[line, line + start] = -torch.inf
        neighbors.append(similarity.topk(min(degree, len(z) - 1), dim=1).indices)
    return torch.cat(neighbors)


def relax(y: Tensor, neighbors: Tensor, generator: torch.Generator, *, steps: int = STEPS) -> Tensor:
    """Move positions so that neighbors attract and random pairs repel each other, and return the new positions [N, 2].

    Each step moves every point y_i by rate * clip(a_i + b_i). The rate falls linearly from 1 toward 0, and clip limits
    each coordinate to -4..4. With r = ||y_i - y_j||, the attraction a_i and the repulsion b_i are

        a_i = mean over neighbors j of     2 (y_j - y_i) / (1 + r^2)
        b_i = sum over eight random j of   clip(2 (y_i - y_j) / ((0.01 + r^2) (1 + r^2)))

    The forces are those of LargeVis (Tang et al., WWW 2016). Two things differ from LargeVis: all points move at once,
    and the attraction is a mean over all neighbors instead of a random neighbor. We also chose our own values for all
    constants.

    Args:
        y: Positions [N, 2].
        neighbors: Indices [N, degree]. Two points attract each other if one is a neighbor of the other.
        generator: Draws the random pairs.
        steps: Number of steps.
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
    """Rotate positions so that the longest extent is along x, center them, and scale the largest coordinate to 1."""
    y = y - y.mean(0)
    if len(y) > 2:
        y = y @ torch.linalg.eigh(y.T @ y)[1].flip(1)
    y = y - (y.amin(0) + y.amax(0)) / 2
    fitted: Tensor = y / y.abs().max().clamp_min(1e-12)
    return fitted
