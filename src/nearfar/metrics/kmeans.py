"""k-means for the clustering metrics: k-means++ start, Lloyd's iterations by faiss."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.validation import Ints

ITERATIONS = 25
MOST_ROUNDS = 512


def kmeans(points: NDArray[np.float32], clusters: int, *, seed: int) -> Ints:
    """The cluster of each point after 25 Lloyd iterations from one k-means++ start (no subsampling of the points).

    >>> x = np.array([[0.0], [0.1], [9.0], [9.1]], dtype=np.float32)
    >>> a = kmeans(x, 2, seed=0)
    >>> bool(a[0] == a[1] != a[2] == a[3])
    True
    """
    import faiss

    if clusters >= len(points):
        return np.arange(len(points))
    start = plus_plus(points, clusters, seed=seed)
    model = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    model.train(points, init_centroids=start)
    assigned: Ints = model.index.search(points, 1)[1][:, 0]
    return assigned


def plus_plus(points: NDArray[np.float32], clusters: int, *, seed: int) -> NDArray[np.float32]:
    """k-means++ centers: each drawn with probability proportional to D^2, the squared distance to the nearest so far.

    Arthur and Vassilvitskii, SODA 2007. Up to 512 clusters one at a time, as published. Beyond, a round draws
    ceil(clusters / 512) centers before D^2 is updated (as k-means|| does), which bounds the start at 512 passes.
    """
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(points)
    squares = x.square().sum(1)
    chosen = [int(rng.integers(len(points)))]
    nearest = torch.full((len(points),), torch.inf)
    batch = math.ceil(clusters / MOST_ROUNDS)
    last = chosen
    while len(chosen) < clusters:
        distances = squares[:, None] + squares[last] - 2 * (x @ x[last].T)
        nearest = torch.minimum(nearest, distances.amin(1)).clamp_min_(0)
        nearest[last] = 0
        weights = nearest.double().numpy()
        wanted = min(batch, clusters - len(chosen))
        if np.count_nonzero(weights) < wanted:
            # Fewer distinct points than clusters: any point not yet chosen serves.
            weights = np.ones(len(points))
            weights[chosen] = 0
        last = rng.choice(len(points), wanted, replace=False, p=weights / weights.sum()).tolist()
        chosen = chosen + last
    return points[chosen]
