"""Search in compressed vectors (codes): int8 has 1 byte per dimension, and binary has 1 bit per dimension.

Each query is compared with all codes. The most similar ones become candidates, which are ranked by their exact cosine.
Only the codes must be in memory: the vectors of a saved index are memory-mapped, and only those of the candidates are
read.
"""

from __future__ import annotations

from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from nearfar.search.exact import Vectors

# faiss has the type Any, because its type stubs are incomplete.
faiss: Any = import_module("faiss")

COMPRESSED = ("int8", "binary")
# Number of candidates for each requested neighbor: the value before tuning, and the maximum.
START_EFFORT = {"int8": 2, "binary": 32}
MAX_EFFORT = 4096
# faiss processes four bits of a code at a time: it looks up their contribution in a table of 16 products.
GROUP = 4
SAMPLE = 100_000
ROTATION_SEED = 0


def build_compressed(kind: str, vectors: Vectors) -> Any:
    """Return a faiss index of compressed unit vectors. `kind` is "int8" or "binary".

    For "binary", the number of columns must be a multiple of four.
    """
    index = _create_binary(vectors) if kind == "binary" else _create_int8(vectors)
    if len(vectors):
        index.add(vectors)
    return index


def _create_int8(vectors: Vectors) -> Any:
    """Create an index that stores one byte per dimension.

    The 256 values of the byte are evenly spaced between the smallest and the largest value of the dimension.
    """
    index = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    # Fewer than two vectors have no range, so use -1..1, which contains the coordinates of all unit vectors.
    ends = np.stack([-np.ones(vectors.shape[1]), np.ones(vectors.shape[1])]).astype(np.float32)
    index.train(_sample(vectors) if len(vectors) > 1 else ends)
    return index


def _create_binary(vectors: Vectors) -> Any:
    """Create an index whose codes are the signs of the centered and randomly rotated vectors.

    The code of a vector x represents the approximation y = m + s * sign(R x - m) of R x. R is the rotation, m is the
    mean of the rotated vectors, and s is their mean absolute deviation from m, which minimizes the squared error of y.
    m and s have one value per dimension. Queries are not compressed: the similarity of a query q to a code is the
    product (R q) . y. The random rotation gives all dimensions about the same variance.

    faiss computes these products by product quantization with four-bit codes (André et al., VLDB 2015). Each four-bit
    code covers four dimensions, and its 16 centroids are all combinations of m + s and m - s.
    """
    dim = vectors.shape[1]
    rotation = faiss.RandomRotationMatrix(dim, dim)
    rotation.init(ROTATION_SEED)
    mean, deviation = np.zeros(dim, np.float32), np.full(dim, dim**-0.5, np.float32)
    if len(vectors):
        rotated = rotation.apply(_sample(vectors))
        mean = rotated.mean(0)
        # If all vectors are equal, their deviation is 0. The lower bound allows for other vectors that are added later.
        deviation = np.maximum(np.abs(rotated - mean).mean(0), 1e-3 * deviation)
    signs = np.array(list(product((-1.0, 1.0), repeat=GROUP)), np.float32)
    centroids = mean.reshape(-1, 1, GROUP) + signs * deviation.reshape(-1, 1, GROUP)
    codes = faiss.IndexPQFastScan(dim, dim // GROUP, GROUP, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.ascontiguousarray(centroids, np.float32).ravel(), codes.pq.centroids)
    codes.is_trained = True
    index = faiss.IndexPreTransform(rotation, codes)
    index.is_trained = True
    rotation.this.disown()  # the index owns and deletes `rotation` and `codes`
    codes.this.disown()
    index.own_fields = True
    return index


def is_compressed_index(index: Any, kind: str) -> bool:
    """Return whether a faiss index has the type that `build_compressed` creates for `kind`."""
    if kind == "int8":
        return isinstance(index, faiss.IndexScalarQuantizer)
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else None
    return isinstance(inner, faiss.IndexPQFastScan)


def _sample(vectors: Vectors) -> Vectors:
    if len(vectors) <= SAMPLE:
        return np.ascontiguousarray(vectors)
    rows = np.sort(np.random.default_rng(0).choice(len(vectors), SAMPLE, replace=False))
    return np.ascontiguousarray(vectors[rows])
