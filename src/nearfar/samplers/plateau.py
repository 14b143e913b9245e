"""Detection of a plateau: a loss that has stopped falling."""

from __future__ import annotations

from typing import Any


class Plateau:
    """Detect a plateau of the loss.

    A plateau is reached when the running loss has not fallen below its minimum by more than the fraction `tolerance`
    for `patience` steps. The running loss is an exponential mean, (1 - smoothing) sum_k smoothing^k loss_{t-k},
    divided by the sum of the weights so far. The values smoothing=0.9 and tolerance=0.01 are ours.

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
        """Add the loss of a step, and return whether the running loss is on a plateau."""
        self.steps += 1
        self.total = self.smoothing * self.total + (1 - self.smoothing) * loss
        running = self.total / (1 - self.smoothing**self.steps)
        if self.steps == 1 or running < self.lowest - self.tolerance * abs(self.lowest):
            self.lowest, self.waited = running, 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the running loss, its minimum and the number of steps since."""
        return {"steps": self.steps, "waited": self.waited, "total": self.total, "lowest": self.lowest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.steps, self.waited = int(state["steps"]), int(state["waited"])
        self.total, self.lowest = float(state["total"]), float(state["lowest"])
