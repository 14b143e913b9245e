"""A weighted sum of several losses of the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.base import Loss
from nearfar.losses.matryoshka import MatryoshkaLoss
from nearfar.validation import Labels, check_not_negative


class CombinedLoss(Loss):
    """A weighted sum of losses: `value = sum_i weights[i] * losses[i](embeddings, labels)`.

    Every loss has its own options and miner, and gets the whole batch. `nearfar.losses.create` creates a `CombinedLoss`
    from a list of loss names and options.

    Args:
        losses: The losses, for example a proxy loss and a pair loss.
        weights: The weight of each loss, at least 0. The default is 1 for all.
        names: The names of the losses. The default is their class names.

    Attributes:
        names: The names of the n losses. A repeated name gets a number, for example "triplet-2".
        values: The values of the n losses in the last call, detached and not multiplied by the weights, [n].

    >>> from nearfar.losses import create
    >>> both = create([{"name": "proxy-anchor"}, {"name": "contrastive", "weight": 0.5}], classes=2, dim=3)
    >>> value = both(torch.eye(3), torch.tensor([0, 0, 1]))
    >>> both.names, both.weights
    (['proxy-anchor', 'contrastive'], [1.0, 0.5])
    >>> bool(torch.isclose(value, both.values[0] + 0.5 * both.values[1]))
    True
    """

    def __init__(
        self, losses: Sequence[Loss], *, weights: Sequence[float] | None = None, names: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        if not losses or not all(isinstance(loss, Loss) for loss in losses):
            raise ValueError(f"losses must be one or more losses of nearfar, got {list(losses)!r}")
        self.weights = [1.0] * len(losses) if weights is None else [_number(weight) for weight in weights]
        if len(self.weights) != len(losses):
            raise ValueError(f"weights must have one number for each of the {len(losses)} losses, got {weights!r}")
        for weight in self.weights:
            check_not_negative("weights", weight)
        self.names = number_names([type(loss).__name__ for loss in losses] if names is None else names)
        self.losses = nn.ModuleList(losses)
        self.values = torch.zeros(len(losses))

    def forward(self, embeddings: Tensor, labels: Labels | None = None, **options: Any) -> Tensor:
        """Compute the weighted sum. All arguments are passed to every loss."""
        values = [loss(embeddings, labels, **options) for loss in self.losses]
        self.values = torch.stack([value.detach() for value in values])
        total: Tensor = sum(weight * value for weight, value in zip(self.weights, values, strict=True))
        return total

    @property
    def warmup_epochs(self) -> int:
        return max(int(loss.warmup_epochs) for loss in losses_of(self))

    def start_epoch(self, n: int) -> None:
        for loss in losses_of(self):
            loss.start_epoch(n)

    def extra_repr(self) -> str:
        return f"weights={self.weights}"


def _number(weight: object) -> float:
    try:
        return float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"the weight of a loss must be a number, got {weight!r}") from None


def losses_of(loss: nn.Module) -> list[Any]:
    """Return all losses inside a combined or Matryoshka loss, at any depth. For other losses, return [loss]."""
    if not isinstance(loss, CombinedLoss | MatryoshkaLoss):
        return [loss]
    return [part for inner in loss.losses for part in losses_of(inner)]


def number_names(names: Sequence[str]) -> list[str]:
    """Append a number to every repetition of a name.

    >>> number_names(["triplet", "triplet", "supcon"])
    ['triplet', 'triplet-2', 'supcon']
    """
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return numbered
