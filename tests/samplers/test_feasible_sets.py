"""Proposition 4.1 of PROFS: at a feasible point the contrastive, triplet and margin loss are zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nearfar.losses import create

LABELS = torch.arange(5).repeat(4)


def points(spread: float) -> Tensor:
    """Unit vectors; classes in planes of their own, so sqrt 2 apart, each within an arc of length `spread` (chord)."""
    angles = torch.linspace(0, 2 * math.asin(spread / 2), 4, dtype=torch.float64).repeat_interleave(5)
    x = torch.zeros(20, 10, dtype=torch.float64)
    x[torch.arange(20), 2 * LABELS] = angles.cos()
    x[torch.arange(20), 2 * LABELS + 1] = angles.sin()
    return x


# loss -> eps+ of the constraint set; eps- is at most sqrt 2: eps, sqrt(eps+^2 + eps), beta + delta
FEASIBLE = {"contrastive": 0.0, "triplet": 1.0, "margin": 1.0}


@pytest.mark.parametrize("representatives", [None, 5])
@pytest.mark.parametrize("name", FEASIBLE)
def test_a_feasible_point_costs_nothing(name: str, representatives: int | None) -> None:
    x = points(FEASIBLE[name])
    same = LABELS[:, None] == LABELS
    d = torch.cdist(x, x)
    assert d[same].max() <= FEASIBLE[name] + 1e-12
    assert d[~same].min() >= 1.4
    loss = create(name).double()
    assert loss(x, LABELS, representatives=representatives).item() < 1e-12
    # one sample among another class, and the point is not feasible
    x[7] = x[3]
    assert loss(x, LABELS, representatives=representatives).item() > 0.01


def test_the_relaxed_set_asks_only_for_its_representatives() -> None:
    """C_k holds a point that is not in C, where two examples of different classes are near; another C_k does not."""
    x = torch.eye(4, dtype=torch.float64)[[0, 1, 2, 0, 1, 2]]
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    x[[4, 5], 3] = math.sqrt(3)
    x = torch.nn.functional.normalize(x)  # 4 and 5 are 1 from their representatives, 0.7 from one another
    loss = create("margin").double()
    assert loss(x, labels, representatives=3).item() < 1e-12
    other = [0, 4, 2, 3, 1, 5]
    assert loss(x[other], labels[other], representatives=3).item() > 0.05
    assert loss(x, labels).item() > 0.04
