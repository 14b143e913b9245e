"""Silhouette of labeled embeddings, computed in blocks."""

import torch
from torch import Tensor

from nearfar.validation import Ints


def silhouette(points: Tensor, codes: Ints, *, distance: str, memory_mb: int = 256) -> float:
    """Return the mean silhouette (b - a) / max(a, b) of all samples, between -1 and 1 (Rousseeuw, 1987).

    a is the mean distance of a sample to the other samples of its class, and b its mean distance to the samples of the
    nearest other class. A sample that is alone in its class has silhouette 0. Cosine distance is 1 - cos.

    Args:
        points: Vectors [N, d]. For cosine distance, their norms must be 1 or 0.
        codes: Class number of each sample, from 0 to C - 1, where C is at least 2.
        distance: "cosine" or "euclidean".
        memory_mb: Memory for a block of distances, in MiB.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> round(silhouette(x, torch.tensor([0, 0, 1, 1]).numpy(), distance="euclidean"), 4)
    0.8997
    """
    classes = int(codes.max()) + 1
    if classes < 2:
        raise ValueError("silhouette needs at least two classes in labels, got one")
    own = torch.from_numpy(codes).to(points.device)
    sizes = torch.bincount(own, minlength=classes).to(points.dtype)
    sums = points.new_zeros(classes, points.shape[1]).index_add_(0, own, points)
    rows = max(1, memory_mb * 2**20 // (points.element_size() * 3 * (len(points) + classes)))
    total = 0.0
    for start in range(0, len(points), rows):
        block = torch.arange(start, min(start + rows, len(points)), device=points.device)
        line, mine = torch.arange(len(block), device=points.device), own[block]
        if distance == "cosine":
            # For unit vectors, 1 - cos is linear in the second vector, so the sum of the vectors of each class is
            # enough. The second statement sets the distance of a sample to itself to 0.
            to_class = sizes - points[block] @ sums.T
            to_class[line, mine] -= 1 - points[block].square().sum(1)
        else:
            apart = torch.cdist(points[block], points)
            apart[line, block] = 0
            to_class = points.new_zeros(len(block), classes).index_add_(1, own, apart)
        a = to_class[line, mine] / (sizes[mine] - 1).clamp_min(1)
        mean = to_class / sizes
        mean[line, mine] = torch.inf
        b = mean.amin(1)
        score = (b - a) / torch.maximum(a, b).clamp_min(1e-30)
        total += float(score[sizes[mine] > 1].sum())
    return total / len(points)
