"""Digests of arrays and names, from which the fingerprint of a manifest is computed."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 24


def encode_name(text: str) -> bytes:
    """Encode a name as UTF-8.

    Python represents bytes of a file name that are not UTF-8 by surrogates. They are encoded as the original bytes.
    Other lone surrogates are encoded as if they were characters.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def digest_array(array: NDArray[Any]) -> str:
    """Return the SHA-256 of the dtype, shape and content of an array. A memory map is read block by block."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    step = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        digest.update(np.ascontiguousarray(array[start : start + step]).data)
    return digest.hexdigest()
