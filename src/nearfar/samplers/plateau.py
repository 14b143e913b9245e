"""Detection of a plateau, where the loss has stopped decreasing."""

from __future__ import annotations

from typing import Any


class Plateau:
    """A detector of plateaus of the training loss.

    A plateau is reached after `patience` consecutive steps without an improvement. The running loss is an exponential
    moving average of the losses: the loss from k steps ago has a weight proportional to smoothing^k, and the weights
    add up to 1. A step is an improvement if its running loss is lower than the running loss at the last improvement, by
    more than the fraction `tolerance` of that value. The defaults smoothing=0.9 and tolerance=0.01 are our choice.

    >>> plateau = Plateau(patience=2)
    >>> [plateau.observe(loss) for loss in (4.0, 2.0, 2.0, 9.0, 9.0)]
    [False, False, False, False, True]
    """

    def __init__(self, patience: int, *, smoothing: float = 0.9, tolerance: float = 0.01) -> None:
        if patience < 1:
            raise ValueError(f"patience must be at least 1 step, got {patience}")
        self.patience, self.smoothing, self.tolerance = patience, smoothing, tolerance
        self.reset()

    def reset(self) -> None:
        """Forget all losses."""
        self.steps, self.waited, self.total, self.lowest = 0, 0, 0.0, 0.0

    def observe(self, loss: float) -> bool:
        """Record the loss of a step, and return whether the running loss has reached a plateau."""
        self.steps += 1
        self.total = self.smoothing * self.total + (1 - self.smoothing) * loss
        running = self.total / (1 - self.smoothing**self.steps)
        if self.steps == 1 or running < self.lowest - self.tolerance * abs(self.lowest):
            self.lowest, self.waited = running, 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, the steps since the last improvement, and the averages that `observe` uses."""
        return {"steps": self.steps, "waited": self.waited, "total": self.total, "lowest": self.lowest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self.steps, self.waited = int(state["steps"]), int(state["waited"])
        self.total, self.lowest = float(state["total"]), float(state["lowest"])
