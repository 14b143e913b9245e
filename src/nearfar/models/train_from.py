"""Find the first trained block of a backbone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nearfar.spelling import suggest

HEAD = "head"
TrainFrom = str | int | float


def find_first_trained(names: Sequence[str], train_from: TrainFrom) -> int:
    """Return the index of the first trained block, or the number of blocks if only the head is trained.

    Args:
        names: Distinct names of the blocks, from the input to the output.
        train_from: One of these: "head"; the name of a block; the name of a group of blocks (`layer3` means its first
            block, `layer3.0`); the index of a block, counted from 0; or the fraction of the blocks that is trained, a
            number strictly between 0 and 1.

    Raises:
        ValueError: If no block has this name or index, or if nothing would be frozen.

    >>> names = ["stem", "layer1.0", "layer1.1", "layer2.0"]
    >>> [find_first_trained(names, where) for where in ("layer1", "layer1.1", 3, 0.5, 0.3, "head")]
    [1, 2, 3, 2, 3, 4]
    """
    if train_from == HEAD:
        return len(names)
    if not names:
        raise ValueError(
            f"train_from={train_from} needs a backbone that is a sequence of blocks, and this one is not: "
            f"use train_from={HEAD}, or null to train everything"
        )
    if isinstance(train_from, str):
        matches = [i for i, name in enumerate(names) if name == train_from or name.startswith(f"{train_from}.")]
        if not matches:
            known = [*names, HEAD]
            similar = suggest(train_from, known)
            raise ValueError(f"train_from={train_from} is not a block{similar} Known: {_join(known)}")
        first = matches[0]
    elif isinstance(train_from, float) and not train_from.is_integer():
        if not 0 < train_from < 1:
            raise ValueError(f"train_from={train_from} must be between 0 and 1 if it is a fraction of the blocks")
        first = len(names) - max(1, math.floor(train_from * len(names) + 0.5))
    else:
        first = int(train_from)
        if not 0 <= first < len(names):
            raise ValueError(
                f"train_from={train_from} must be at least 1 and below the number of blocks, {len(names)}: "
                f"{_join(names)}"
            )
    if first == 0:
        raise ValueError(f"train_from={train_from} freezes nothing: use null to train everything")
    return first


def _join(names: Sequence[str]) -> str:
    return ", ".join(names)
