"""What a run computes before its first step, kept for runs of this process that begin alike.

The methods of a bench begin with the same network on the same data: its head from PCA and its scores before training
are a pass each over the training and the test pictures, which need be made only once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from nearfar.config.schema import Config

CACHE_SIZE = 8


@dataclass
class InitialState:
    """The head from PCA with the embeddings of the training set, and the test scores; None: not computed yet."""

    head: dict[str, Tensor] | None = None
    rows: Tensor | None = None
    scores: dict[str, float] | None = None


class InitialStateCache:
    """The starts of the runs before, the newest few."""

    def __init__(self) -> None:
        self._states: dict[str, InitialState] = {}

    def get(self, config: Config) -> InitialState:
        """That of the runs with the same network, data, pictures and seed; whatever else differs comes after it."""
        parts = [asdict(each) for each in (config.model, config.data, config.images)]
        weights = config.model.pretrained  # a file that is written anew is another start
        file = Path(weights).expanduser() if isinstance(weights, str) else None
        state = (file.stat().st_size, file.stat().st_mtime_ns) if file is not None and file.is_file() else None
        key = json.dumps([*parts, state, config.seed, config.autocast, config.device, sorted(config.metrics)])
        start = self._states.pop(key, InitialState())
        self._states[key] = start  # the newest is the last
        while len(self._states) > CACHE_SIZE:
            del self._states[next(iter(self._states))]
        return start
