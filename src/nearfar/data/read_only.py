"""Read-only columns of a manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def check_words(name: str, values: ArrayLike, rows: int, allowed: tuple[str, ...]) -> NDArray[np.str_]:
    """Return strings as a read-only array [rows]. Raise a ValueError for a wrong shape or a string not in `allowed`."""
    words = np.asarray(values, dtype=np.str_)
    if words.shape != (rows,):
        raise ValueError(f"{name} must have shape [{rows}], got {list(words.shape)}")
    unknown = sorted(set(np.unique(words).tolist()) - set(allowed))
    if unknown:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {unknown[0]!r}")
    frozen: NDArray[np.str_] = freeze(words)
    return frozen


def freeze(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of an array."""
    view: NDArray[Any] = array.view()
    view.flags.writeable = False
    return view
