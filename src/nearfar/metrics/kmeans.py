"""k-means for the clustering metrics: k-means++ initialization, then Lloyd iterations with faiss."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.validation import Ints

ITERATIONS = 25
MOST_ROUNDS = 512


def kmeans(points: NDArray[np.float32], clusters: int, *, seed: int) -> Ints:
    """Cluster points with k-means, and return the cluster of each point.

    The clusters result from one k-means++ initialization and 25 Lloyd iterations on all points. If there are
    at least as many clusters as points, every point is its own cluster.

    >>> x = np.array([[0.0], [0.1], [9.0], [9.1]], dtype=np.float32)
    >>> a = kmeans(x, 2, seed=0)
    >>> bool(a[0] == a[1] != a[2] == a[3])
    True
    """
    import faiss

    if clusters >= len(points):
        return np.arange(len(points))
    start = choose_centers(points, clusters, seed=seed)
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


def choose_centers(points: NDArray[np.float32], clusters: int, *, seed: int) -> NDArray[np.float32]:
    """Draw initial centers from the points by k-means++ (Arthur and Vassilvitskii, SODA 2007).

    A point is drawn with probability proportional to D^2, its squared distance to the nearest center drawn so far. If
    there are at most 512 clusters, centers are drawn one at a time, as published. If there are more, each round draws
    ceil(clusters / 512) centers before D^2 is updated (similar to k-means||), so that there are at most 512 passes over
    the points.
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
        count = min(batch, clusters - len(chosen))
        if np.count_nonzero(weights) < count:
            # there are fewer distinct points than clusters: take any point not yet chosen
            weights = np.ones(len(points))
            weights[chosen] = 0
        last = rng.choice(len(points), count, replace=False, p=weights / weights.sum()).tolist()
        chosen = chosen + last
    return points[chosen]
