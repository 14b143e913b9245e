"""Find the nearest neighbors of samples, for the measurements of a calibration."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nearfar.validation import Floats, Ints

BLOCK = 1024


@torch.no_grad()
def find_neighbors(vectors: Tensor, queries: Ints, gallery: Ints, k: int) -> tuple[Floats, Ints]:
    """Return the distances 1 - cosine [Q, k] and rows [Q, k] of the nearest gallery samples, without the query itself.

    Args:
        vectors: Unit vectors [N, d].
        queries: Rows of the queries [Q].
        gallery: Rows that are searched [G], ascending.
        k: Number of neighbors. Where there are fewer, the distance is inf and the row -1.
    """
    base = vectors[torch.from_numpy(gallery)]
    distances, rows = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1, np.int64)
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        similarity = vectors[torch.from_numpy(block)] @ base.T
        position = np.minimum(np.searchsorted(gallery, block), len(gallery) - 1)
        inside = np.flatnonzero(gallery[position] == block)
        similarity[torch.from_numpy(inside), torch.from_numpy(position[inside])] = -torch.inf
        values, columns = similarity.topk(min(k, len(gallery)), dim=1)
        is_missing = torch.isinf(values).numpy()
        width = values.shape[1]
        distances[start : start + BLOCK, :width] = np.where(
            is_missing, np.inf, (1 - values.double()).clamp_min(0).numpy()
        )
        rows[start : start + BLOCK, :width] = np.where(is_missing, -1, gallery[columns.numpy()])
    return distances, rows
