"""RDML: the hinge of the triplet or margin loss, rescaled so that the cost of an outlier is bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nearfar.losses.base import register
from nearfar.losses.margin import boundary_hinges
from nearfar.losses.pair_loss import PairBatch, PairLoss
from nearfar.ops.geometry import cosine_matrix, unit_distance_matrix
from nearfar.ops.pairs import Pairs
from nearfar.ops.triplets import mean_over_triplets
from nearfar.validation import check_choice


@register("rdml")
class RDMLLoss(PairLoss):
    """Robust metric learning by the rescaled hinge (Al-Obaidi et al., 2020), on unit vectors.

    A term z >= 0 costs b (1 - e^{-eta z}) with b = 1/(1 - e^{-eta}), which is at most b; its limit for eta -> 0 is z.

    - hinge="triplet": z = [margin + D_ap^2 - D_an^2]_+, mean over all triplets.
    - hinge="margin": z = [D - beta + margin]_+ for positives and [beta + margin - D]_+ for negatives, mean over all
      pairs, beta fixed.

    Args:
        eta: The paper searches {0.5, 1, 2, 3, 4}; the default 1 is ours.
        margin: The margin of the hinge.
        hinge: "triplet" or "margin". The default is ours: BSPML, which compares with RDML, does not state its choice.
        beta: The boundary of hinge "margin".

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> RDMLLoss(eta=0)(x, torch.tensor([0, 0, 1]))  # the plain triplet loss
    tensor(0.1000)
    """

    def __init__(self, *, eta: float = 1.0, margin: float = 0.2, hinge: str = "triplet", beta: float = 1.2) -> None:
        super().__init__()
        if not 0 <= eta < math.inf:
            raise ValueError(f"eta must be finite and at least 0, got {eta}")
        self.eta, self.margin, self.beta = eta, margin, beta
        self.hinge = check_choice("hinge", hinge, ("triplet", "margin"))

    def similarity(self, x: Tensor, y: Tensor | None) -> Tensor:
        return cosine_matrix(x, y) if self.hinge == "triplet" else -unit_distance_matrix(x, y)

    def cost(self, pairs: Pairs, batch: PairBatch) -> Tensor:
        if self.hinge == "margin":
            return pairs.mean(rescale(boundary_hinges(-pairs.sim, pairs.same, self.beta, self.margin), self.eta))
        return mean_over_triplets(
            pairs.sim,
            pairs.same,
            pairs.diff,
            pairs.weights,
            pairs.ref_weights,
            self.margin,
            2.0,  # D_ap^2 - D_an^2 = 2 (S_an - S_ap)
            "rescaled" if self.eta > 0 else "hinge",
            self.eta,
            False,
        )


def rescale(z: Tensor, eta: float) -> Tensor:
    """Compute b (1 - e^{-eta z}) with b = 1/(1 - e^{-eta}), or z if eta = 0."""
    return z if eta == 0 else torch.expm1(-eta * z) / math.expm1(-eta)
