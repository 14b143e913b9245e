"""The smallest and the largest uncertainty set, which give the mean loss and the largest loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nearfar.losses.dro.uncertainty import SparseSet, UncertaintySet, inverse, keep_upper_triangle, register
from nearfar.ops.pairs import Pairs


@register("mean")
@dataclass(frozen=True)
class Mean(UncertaintySet):
    """Weights p = w / sum w for pair weights w: the DRO loss is the mean over all pairs.

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> Mean()(torch.tensor([[3.0, 1.0]]), pairs)
    tensor([[0.5000, 0.5000]])
    """

    def __call__(self, losses: Tensor, pairs: Pairs) -> Tensor:
        mass = pairs.mass(pairs.same | pairs.diff)
        return mass * inverse(mass.sum())


@register("max")
@dataclass(frozen=True)
class Max(SparseSet):
    """All weight on the pair with the largest loss. The uncertainty set is the whole simplex.

    If several pairs have the largest loss, one of them gets all the weight. Sample weights matter only if they are 0.

    >>> pairs = Pairs(torch.zeros(1, 2), torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    >>> Max()(torch.tensor([[3.0, 1.0]]), pairs)
    tensor([[1., 0.]])
    """

    def select(self, losses: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        values = torch.where(pairs.same | pairs.diff, keep_upper_triangle(losses, pairs), -torch.inf)
        top, index = values.flatten().max(0, keepdim=True)
        return index, (top > -torch.inf).to(losses.dtype)
