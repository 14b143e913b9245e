"""The values of several losses and their weighted sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class LossTracker:
    """Store the values of losses by name in `losses`, together with their weighted sum "total_loss"."""

    def __init__(self, loss_names: Iterable[str]) -> None:
        names = list(loss_names)
        if "total_loss" not in names:
            names.append("total_loss")
        self.losses: dict[str, Any] = dict.fromkeys(names, 0)
        self.loss_weights: dict[str, float] = dict.fromkeys(names, 1)

    def update(self, loss_weights: Mapping[str, float]) -> None:
        """Set "total_loss" to the sum of the values times their weights, which are 1 by default."""
        self.losses["total_loss"] = 0
        for name, value in self.losses.items():
            if name != "total_loss":
                self.losses["total_loss"] += value * loss_weights.get(name, 1)
